//! Keys from the command line.

use clap::Parser;

use super::*;

#[derive(Debug, Parser)]
struct Line {
    #[command(subcommand)]
    _key: KeyCommand,
}

#[test]
fn the_command_line_makes_no_key_of_no_days() {
    let line = |days| Line::try_parse_from(["hone", "add", "ann", "--days", days]);
    let refused = line("0").unwrap_err().to_string();
    assert!(refused.contains("leave --days out"), "{refused}");
    assert!(line("1").is_ok());
}
