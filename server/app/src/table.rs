//! Lists of the command line: columns under their names.

/// How a column stands under its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    /// Words.
    Left,
    /// Numbers.
    Right,
}

/// Rows with a line of names above, two blanks apart. A row may have fewer cells than there are
/// names.
pub(crate) fn table(names: &[(&str, Side)], rows: &[Vec<String>]) -> String {
    let width = |at: usize| {
        let cells = rows.iter().filter_map(|row| row.get(at));
        let widest = cells.map(|cell| cell.chars().count()).max();
        widest.unwrap_or(0).max(names[at].0.chars().count())
    };
    let widths: Vec<usize> = (0..names.len()).map(width).collect();
    let heads: Vec<String> = names.iter().map(|(name, _)| (*name).to_owned()).collect();
    let mut text = String::new();
    for row in [&heads].into_iter().chain(rows) {
        let mut line = String::new();
        for ((cell, (_, side)), width) in row.iter().zip(names).zip(&widths) {
            let padded = match side {
                Side::Left => format!("{cell:<width$}"),
                Side::Right => format!("{cell:>width$}"),
            };
            line.push_str(&padded);
            line.push_str("  ");
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let names = [("name", Side::Left), ("n", Side::Right), ("", Side::Left)];
        let row = |cells: &[&str]| cells.iter().map(|c| (*c).to_owned()).collect();
        let rows = [
            row(&["Zoë", "7", "disabled"]),
            row(&["somebody", "1234", ""]),
            row(&["x"]),
        ];
        let wanted = "name         n\nZoë          7  disabled\nsomebody  1234\nx\n";
        assert_eq!(table(&names, &rows), wanted);
        assert_eq!(table(&names[..1], &[]), "name\n");
    }
}
