//! The program `hone`.

/// Requests make many small values, at which glibc's allocator is slow.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> std::process::ExitCode {
    hone::cli::main()
}
