//! Sections of `configs/default.toml`, for tests of crates that do not know the program's configuration.

/// The shipped values of a section.
pub(crate) fn defaults<T: serde::de::DeserializeOwned>(section: &str) -> T {
    let all: toml::Table = include_str!("../../configs/default.toml")
        .parse()
        .expect("the defaults are TOML");
    let section = all[section].clone();
    section.try_into().expect("the section has the type's keys")
}
