//! Prints the speeds of [`hone_nn::bench`] for the starter shape: `speed [threads] [seconds]`.

use std::time::Duration;

use hone_nn::bench;

fn main() {
    let mut args = std::env::args().skip(1);
    let threads = args.next().and_then(|a| a.parse().ok()).unwrap_or(2);
    let seconds = args.next().and_then(|a| a.parse().ok()).unwrap_or(14);
    let cfg = bench::starter_shape();
    for speed in bench::run(&cfg, threads, Duration::from_secs(seconds)) {
        println!(
            "{:<32} {:>12.0} tokens/s   longest call {:>8.3} ms",
            speed.name, speed.tokens_per_second, speed.longest_ms
        );
    }
}
