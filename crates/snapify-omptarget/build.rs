//! Link options of the plugin.

fn main() {
    // The runtime's threads run code of this library until the process ends: a dlclose must not unmap it.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
    println!("cargo:rerun-if-changed=build.rs");
}
