//! Feeds made-up bytes to one parser, named by the variable PARSER: see `hone_tests::parsers`.
#![no_main]

use std::sync::LazyLock;

use hone_tests::parsers::PARSERS;
use libfuzzer_sys::fuzz_target;

static PARSE: LazyLock<fn(&[u8])> = LazyLock::new(|| {
    let wanted = std::env::var("PARSER").unwrap_or_default();
    let found = PARSERS.iter().find(|(name, _)| *name == wanted);
    let names = PARSERS.map(|(name, _)| name).join(", ");
    found.unwrap_or_else(|| panic!("set PARSER to one of {names}")).1
});

fuzz_target!(|data: &[u8]| (*PARSE)(data));
