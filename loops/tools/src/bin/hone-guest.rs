//! The guest alone, for tests; the program `hone` has it as a hidden command.

fn main() -> std::process::ExitCode {
    hone_tools::guest::main()
}
