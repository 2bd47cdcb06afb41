//! Link options of the library.

fn main() {
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libsnapify.so.0");
    // Its threads run until the process ends: a dlclose must not unmap their code.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
    println!("cargo:rerun-if-changed=build.rs");
}
