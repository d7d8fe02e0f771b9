//! Prints the speeds of [`hone_nn::bench`]:
//! `speed [starter|medium|large] [stored|bf16|q8|q4] [threads] [seconds] [context] [f32|bf16|amx|int8] [f16] [avx2]`;
//! products are computed as said, or as is quickest here (`-`); keys and values are kept as f32, or f16; at the widest level of
//! instructions, or as a processor with AVX2 has them. First the most that the processor multiplies.

use std::time::Duration;

use hone_nn::bench::{self, Plan};
use hone_nn::{Arithmetic, KvFormat, SimdLevel, WeightFormat};

const ROOF_TIME: Duration = Duration::from_secs(1);

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let text = |at: usize| args.get(at).map_or("", String::as_str);
    let number = |at: usize, or: u64| text(at).parse().unwrap_or(or);
    let formats = [
        WeightFormat::Stored,
        WeightFormat::Bf16,
        WeightFormat::Q8,
        WeightFormat::Q4,
    ];
    let format = formats.into_iter().find(|f| f.as_str() == text(1));
    let plan = Plan {
        shape: match text(0) {
            "medium" => bench::medium_shape(),
            "large" => bench::large_shape(),
            _ => bench::starter_shape(),
        },
        format: format.unwrap_or_default(),
        arithmetic: match text(5) {
            "f32" => Some(Arithmetic::F32),
            "bf16" => Some(Arithmetic::Bf16),
            "amx" => Some(Arithmetic::Amx),
            "int8" => Some(Arithmetic::Int8),
            _ => None,
        },
        kv: match text(6) {
            "f16" => KvFormat::F16,
            _ => KvFormat::F32,
        },
        threads: number(2, 2) as usize,
        budget: Duration::from_secs(number(3, 14)),
        context: number(4, 512) as usize,
        train: !matches!(text(0), "medium" | "large"),
    };
    if text(7) == "avx2" && !SimdLevel::Avx2.force() {
        eprintln!("speed: this processor has no AVX2");
        std::process::exit(2);
    }
    if let Some(asked) = plan.arithmetic.filter(|asked| !asked.supported()) {
        eprintln!("speed: this processor has no products of {asked:?}");
        std::process::exit(2);
    }
    let model = bench::model(&plan);
    let roof = bench::roof(model.weights.arithmetic(), plan.threads, ROOF_TIME);
    println!(
        "{:<40} {:>12.1} thousand million multiply-adds/s",
        "at most, in registers",
        roof / 1e9
    );
    for speed in bench::run(&plan, model) {
        println!(
            "{:<40} {:>12.0} tokens/s   longest call {:>8.3} ms",
            speed.name, speed.tokens_per_second, speed.longest_ms
        );
    }
}
