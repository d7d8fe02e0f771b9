//! Texts that the trainer brings along: facts, examples of instructions, generic prompts.

/// Texts that the trainer brings along, the same for every scope.
#[derive(Clone, Debug, Default)]
pub struct Reference {
    /// Plain facts; none of them may be lost.
    pub facts: Vec<Fact>,
    /// How a complaint is turned into an instruction: first what is to be done, then examples, each
    /// a message of the user and the answer to it.
    pub rewrite: Vec<String>,
}

/// A plain fact.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fact {
    /// What is asked.
    pub question: String,
    /// How the answer begins.
    pub beginning: String,
    /// How it goes on; this is what is scored.
    pub answer: String,
}

impl Reference {
    /// The texts in the program.
    pub fn built_in() -> Self {
        let lines = |text: &'static str| text.lines().filter(|line| !line.starts_with('#'));
        let fact = |line: &str| {
            let mut columns = line.split('\t').map(str::to_owned);
            Some(Fact {
                question: columns.next()?,
                beginning: columns.next()?,
                answer: columns.next()?,
            })
        };
        Self {
            facts: lines(include_str!("../../prompts/facts.tsv"))
                .filter_map(fact)
                .collect(),
            rewrite: lines(include_str!("../../prompts/rewrite.txt"))
                .map(str::to_owned)
                .collect(),
        }
    }
}

/// Generic prompts in the program, one a line.
pub fn generic_prompts() -> Vec<String> {
    let lines = include_str!("../../prompts/generic.txt").lines();
    let lines = lines.filter(|line| !line.starts_with('#') && !line.trim().is_empty());
    lines.map(str::to_owned).collect()
}
