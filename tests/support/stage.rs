//! The staged installation under test.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// A copy of the staged installation that any user can read, made once per test run.
pub fn stage() -> &'static Path {
    static STAGE: OnceLock<tempfile::TempDir> = OnceLock::new();
    STAGE
        .get_or_init(|| {
            let from = std::env::var_os("SNAPIFY_STAGE").map_or_else(
                || Path::new(env!("CARGO_MANIFEST_DIR")).join("../build"),
                PathBuf::from,
            );
            assert!(
                from.join("bin/snapify").exists(),
                "{} holds no staged installation: run the tests by `make test`",
                from.display()
            );
            let copy = tempfile::Builder::new()
                .prefix("snapify-stage-")
                .permissions(std::os::unix::fs::PermissionsExt::from_mode(0o755))
                .tempdir()
                .expect("make a directory for the staged installation");
            let done = Command::new("cp")
                .arg("-a")
                .arg(from.join("."))
                .arg(copy.path())
                .status()
                .expect("run cp");
            assert!(done.success(), "cannot copy the staged installation");
            // SAFETY: the handler is a plain function that lives as long as the program.
            unsafe { libc::atexit(clean_up) };
            copy
        })
        .path()
}

/// At the end of the test run: statics are never dropped, and libomp leaves the registrations of killed programs behind.
extern "C" fn clean_up() {
    let _ = std::fs::remove_dir_all(stage());
    let Some(user) = crate::User::Ordinary.switch_to() else {
        return;
    };
    let living = ids_in_use();
    for entry in std::fs::read_dir("/dev/shm")
        .into_iter()
        .flatten()
        .flatten()
    {
        let name = entry.file_name().to_string_lossy().into_owned();
        let pid = name
            .strip_prefix("__KMP_REGISTERED_LIB_")
            .and_then(|rest| rest.strip_suffix(&format!("_{user}")))
            .and_then(|pid| pid.parse().ok());
        // Without its registration a program of another test run would not come to its end.
        if pid.is_some_and(|pid: i32| !living.contains(&pid)) {
            let _ = std::fs::remove_file(entry.path());
        }
    }
}

/// The ids that processes have, here and for themselves: restored ones have others.
fn ids_in_use() -> HashSet<i32> {
    let mut ids = HashSet::new();
    for entry in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
        let status = std::fs::read_to_string(entry.path().join("status")).unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix("NStgid:"));
        let levels = line.unwrap_or_default().split_whitespace();
        ids.extend(levels.filter_map(|id| id.parse::<i32>().ok()));
    }
    ids
}

/// Where compiled programs lie, readable by any user.
pub(crate) fn programs() -> PathBuf {
    let dir = stage().join("programs");
    std::fs::create_dir_all(&dir).expect("make a directory for compiled programs");
    dir
}
