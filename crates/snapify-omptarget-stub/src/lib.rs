//! A stand-in for `libomptarget` inside offload processes.
//!
//! Device images that clang 14 to 16 make for `x86_64` name `libomptarget.so.16` (`.so.15`, `.so`) among the libraries
//! that they need, though code which runs on a device hardly ever calls it. The real one would bring libLLVM and some twenty
//! other libraries into every offload process, and into each of its snapshots. This one exports the same names and knows of
//! one device only, the one that it runs on: what it answers is what the real library answers when offloading is disabled.
//!
//! The names carry no symbol version. The dynamic linker accepts that for a reference to a version (`VERS1.0` here) if the
//! library has version information at all, which it gets from its references to the C library.

mod compiler;
mod memory;
mod queries;
