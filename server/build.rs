//! A page that was built again is built into the program again.

fn main() {
    let page = "../web/dist";
    // Naming a folder that is not there would build the program anew every time. `make web` touches
    // this file when it makes the folder.
    let watched = if std::path::Path::new(page).exists() {
        page
    } else {
        "build.rs"
    };
    println!("cargo:rerun-if-changed={watched}");
}
