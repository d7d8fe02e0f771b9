//! Small plots for a terminal.

const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// One character per value in [0, 1].
pub(crate) fn spark(values: &[f64]) -> String {
    let bar = |v: &f64| BARS[((v.clamp(0.0, 1.0) * 8.0) as usize).min(7)];
    values.iter().map(bar).collect()
}

/// Two curves over time in [0, 1]: `●` the first, `○` the second, `◉` both.
pub(crate) fn curves(first: &[f64], second: &[f64], height: usize) -> String {
    let width = first.len().max(second.len());
    let row_of = |v: f64| ((1.0 - v.clamp(0.0, 1.0)) * (height - 1) as f64).round() as usize;
    let mut lines = Vec::new();
    for row in 0..height {
        let label = match row {
            0 => "1.0",
            r if r == height - 1 => "0.0",
            r if r == (height - 1) / 2 => "0.5",
            _ => "   ",
        };
        let cell = |i: usize| {
            let here = |curve: &[f64]| curve.get(i).is_some_and(|v| row_of(*v) == row);
            match (here(first), here(second)) {
                (true, true) => '◉',
                (true, false) => '●',
                (false, true) => '○',
                (false, false) => ' ',
            }
        };
        lines.push(format!(
            "{label} ┤{}",
            (0..width).map(cell).collect::<String>().trim_end()
        ));
    }
    lines.push(format!("    └{}", "─".repeat(width)));
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plots_place_values_where_they_belong() {
        assert_eq!(spark(&[0.0, 0.5, 1.0]), "▁▅█");
        let plot = curves(&[0.0, 1.0], &[0.0, 0.0], 3);
        let lines: Vec<&str> = plot.lines().collect();
        assert_eq!(lines[0], "1.0 ┤ ●");
        assert_eq!(lines[2], "0.0 ┤◉○");
    }
}
