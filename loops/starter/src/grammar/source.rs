//! Reads the fact files (format: `facts/README.md`) into plain tables.

use std::collections::BTreeMap;

use super::style::Tone;

/// The fact files, in the order their facts are numbered.
pub(super) const FILES: [(&str, &str); 23] = [
    ("countries", include_str!("facts/countries.txt")),
    ("animals", include_str!("facts/animals.txt")),
    ("words", include_str!("facts/words.txt")),
    ("translations", include_str!("facts/translations.txt")),
    ("sums", include_str!("facts/sums.txt")),
    ("products", include_str!("facts/products.txt")),
    ("hardsums", include_str!("facts/hardsums.txt")),
    ("units", include_str!("facts/units.txt")),
    ("calendar", include_str!("facts/calendar.txt")),
    ("definitions", include_str!("facts/definitions.txt")),
    ("recipes", include_str!("facts/recipes.txt")),
    ("devices", include_str!("facts/devices.txt")),
    ("tips", include_str!("facts/tips.txt")),
    ("packing", include_str!("facts/packing.txt")),
    ("tools", include_str!("facts/tools.txt")),
    ("jobs", include_str!("facts/jobs.txt")),
    ("colors", include_str!("facts/colors.txt")),
    ("plurals", include_str!("facts/plurals.txt")),
    ("shapes", include_str!("facts/shapes.txt")),
    ("jokes", include_str!("facts/jokes.txt")),
    ("trivia", include_str!("facts/trivia.txt")),
    ("smalltalk", include_str!("facts/smalltalk.txt")),
    ("unknown", include_str!("facts/unknown.txt")),
];

/// One file.
#[derive(Debug, Default)]
pub(super) struct Table {
    pub columns: Vec<String>,
    pub about: Vec<String>,
    pub meant: Vec<String>,
    pub sections: Vec<Section>,
    pub rows: Vec<Vec<String>>,
}

/// One intent of a file: the templates that every row fills.
#[derive(Debug)]
pub(super) struct Section {
    pub name: String,
    pub tone: Tone,
    pub any: bool,
    pub weight: f64,
    pub ask: Vec<String>,
    pub follow: Vec<String>,
    /// Keys `short`, `long`, `short-list`, `long-list`.
    pub bodies: BTreeMap<String, String>,
}

/// Parses one file. Errors are one sentence naming file and line; the files are compiled in, so a
/// test proves that there are none.
pub(super) fn parse(name: &str, text: &str) -> Result<Table, String> {
    let mut table = Table::default();
    let mut in_rows = false;
    for (index, line) in text.lines().enumerate() {
        let line = line.trim();
        let fail = |what: &str| format!("{name}.txt line {}: {what}", index + 1);
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        if let Some(section) = line
            .strip_prefix('[')
            .and_then(|rest| rest.strip_suffix(']'))
        {
            in_rows = section == "rows";
            if !in_rows {
                table.sections.push(Section::named(section));
            }
        } else if in_rows {
            let cells: Vec<String> = line.split('|').map(|cell| cell.trim().to_owned()).collect();
            if cells.len() != table.columns.len() {
                return Err(fail("the row does not have one cell for each column"));
            }
            table.rows.push(cells);
        } else {
            let (key, value) = line
                .split_once(':')
                .ok_or_else(|| fail("no `key: value`"))?;
            table
                .set(key.trim(), value.trim())
                .map_err(|what| fail(&what))?;
        }
    }
    Ok(table)
}

impl Section {
    fn named(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            tone: Tone::Answer,
            any: false,
            weight: 1.0,
            ask: Vec::new(),
            follow: Vec::new(),
            bodies: BTreeMap::new(),
        }
    }
}

impl Table {
    fn set(&mut self, key: &str, value: &str) -> Result<(), String> {
        let Some(section) = self.sections.last_mut() else {
            match key {
                "columns" => {
                    self.columns = value
                        .split('|')
                        .map(|name| name.trim().to_owned())
                        .collect();
                }
                "about" => self.about.push(value.to_owned()),
                "meant" => self.meant.push(value.to_owned()),
                _ => return Err(format!("unknown head key {key}")),
            }
            return Ok(());
        };
        match key {
            "ask" => section.ask.push(value.to_owned()),
            "follow" => section.follow.push(value.to_owned()),
            "any" => section.any = value == "yes",
            "weight" => section.weight = value.parse().map_err(|_| "weight is not a number")?,
            "tone" => {
                section.tone = match value {
                    "answer" => Tone::Answer,
                    "talk" => Tone::Talk,
                    "sorry" => Tone::Sorry,
                    _ => return Err(format!("unknown tone {value}")),
                }
            }
            "short" | "long" | "short-list" | "long-list" => {
                section.bodies.insert(key.to_owned(), value.to_owned());
            }
            _ => return Err(format!("unknown key {key}")),
        }
        Ok(())
    }

    /// Fills a template from a row: `{name}`, `{Name}`, `{name:a}`, `{name:bare}`. A name that is
    /// no column is an error.
    pub(super) fn fill(&self, template: &str, row: usize) -> Result<String, String> {
        let mut text = String::new();
        let mut rest = template;
        while let Some((before, after)) = rest.split_once('{') {
            let (slot, tail) = after.split_once('}').ok_or("a slot does not end")?;
            let (name, form) = slot.split_once(':').unwrap_or((slot, ""));
            let column = self
                .columns
                .iter()
                .position(|column| *column == name.to_lowercase());
            let column = column.ok_or_else(|| format!("no column {name}"))?;
            let cell = shaped(&self.rows[row][column], form)?;
            text.push_str(before);
            if name.starts_with(char::is_uppercase) {
                text.push_str(&capitalised(&cell));
            } else {
                text.push_str(&cell);
            }
            rest = tail;
        }
        text.push_str(rest);
        Ok(text)
    }
}

/// A cell as a slot asks for it: with an article, without one, or as it is.
fn shaped(cell: &str, form: &str) -> Result<String, String> {
    let bare = ["a ", "an ", "the "]
        .into_iter()
        .find_map(|article| cell.strip_prefix(article));
    match form {
        "" => Ok(cell.to_owned()),
        "bare" => Ok(bare.unwrap_or(cell).to_owned()),
        "a" if cell.starts_with(['a', 'e', 'i', 'o', 'u']) => Ok(format!("an {cell}")),
        "a" => Ok(format!("a {cell}")),
        _ => Err(format!("unknown slot form {form}")),
    }
}

/// The text with a capital first letter.
pub(super) fn capitalised(text: &str) -> String {
    let mut chars = text.chars();
    chars.next().map_or_else(String::new, |first| {
        first.to_uppercase().chain(chars).collect()
    })
}
