//! The offload process: see `snapify_offload::sink`.

fn main() -> std::process::ExitCode {
    snapify_offload::sink::main()
}
