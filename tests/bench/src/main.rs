//! The program `hone-bench`.

/// The server's own, so that what is measured is the server.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> std::process::ExitCode {
    hone_bench::main()
}
