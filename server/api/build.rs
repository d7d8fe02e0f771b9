//! A page that was built again is built into the program again, and one that is older than its sources
//! is told.

#[path = "page_age.rs"]
mod page_age;

use std::path::Path;

fn main() {
    let web = Path::new("../../web");
    let page = web.join("dist");
    // Naming a folder that is not there would build the program anew every time. `make web` touches
    // this file when it makes the folder.
    if !page.exists() {
        println!("cargo:rerun-if-changed=build.rs");
        return;
    }
    println!("cargo:rerun-if-changed={}", page.display());
    for source in page_age::sources(web) {
        println!("cargo:rerun-if-changed={}", source.display());
    }
    if let Some(newer) = page_age::newer(web) {
        println!(
            "cargo:warning=the page that is built in is older than {}: `make web` builds it again",
            newer.display()
        );
    }
}
