//! Texts that the trainer brings along: facts, examples of instructions, generic prompts and prompts that say how
//! they are to be answered.

/// Texts that the trainer brings along, the same for every scope.
#[derive(Clone, Debug, Default)]
pub struct Reference {
    /// Plain facts; none of them may be lost.
    pub facts: Vec<Fact>,
    /// How a complaint is turned into an instruction: first what is to be done, then examples, each
    /// a message of the user and the answer to it.
    pub rewrite: Vec<String>,
    /// Prompts that say themselves how they are to be answered.
    pub instructed: Vec<Instructed>,
}

/// A question with an instruction of how to answer it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Instructed {
    /// What is asked.
    pub question: String,
    /// How it is to be answered.
    pub instruction: String,
}

impl Instructed {
    /// The prompt: question and instruction.
    pub fn text(&self) -> String {
        format!("{} {}", self.question, self.instruction)
    }
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
        let instructed = |line: &str| {
            let (question, instruction) = line.split_once('\t')?;
            Some(Instructed {
                question: question.to_owned(),
                instruction: instruction.to_owned(),
            })
        };
        Self {
            facts: lines(include_str!("../../prompts/facts.tsv"))
                .filter_map(fact)
                .collect(),
            rewrite: lines(include_str!("../../prompts/rewrite.txt"))
                .map(str::to_owned)
                .collect(),
            instructed: lines(include_str!("../../prompts/instructed.tsv"))
                .filter_map(instructed)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_of_the_texts_is_read() {
        let texts = Reference::built_in();
        let lines = |text: &str| text.lines().filter(|line| !line.starts_with('#')).count();
        assert_eq!(
            texts.facts.len(),
            lines(include_str!("../../prompts/facts.tsv"))
        );
        let instructed = lines(include_str!("../../prompts/instructed.tsv"));
        assert_eq!(texts.instructed.len(), instructed);
        assert_eq!(
            texts.instructed[3].text(),
            "What should a beginner know about photography? Answer as fully as you can."
        );
    }
}
