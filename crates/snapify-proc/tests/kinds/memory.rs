//! Unusual kinds of memory, and files that are gone while they are mapped.

use crate::stage::{Running, Stage, User};
use std::fs;
use std::process::Command;
use std::sync::Mutex;

/// Runs a kind of memory through a save after which the program goes on, and through two generations of restores.
fn survives(kind: &str) {
    for user in User::all() {
        let stage = Stage::new("mappings", user);
        let start = || {
            let program = stage.start_if_possible(&[kind]);
            if program.is_none() {
                eprintln!("{kind}: not to be had here by {user:?}");
            }
            program
        };
        let Some(original) = start() else { continue };
        stage.save(original.pid(), "first", false);
        original.go_on_and_be_fine();
        generations(&stage, start().unwrap());
    }
}

fn generations(stage: &Stage, original: Running) {
    stage.save(original.pid(), "second", true);
    original.expect_killed();
    let restored = stage.restore("second");
    stage.save(restored.pid(), "third", true);
    restored.expect_killed();
    stage.restore("third").go_on_and_be_fine();
}

macro_rules! kinds {
    ($($(#[$doc:meta])* $name:ident = $kind:literal;)*) => {
        $($(#[$doc])* #[test] fn $name() { survives($kind); })*
    };
}

kinds! {
    shared_memory_that_is_mapped_in_pieces = "pieces";
    mappings_longer_than_their_object = "longer";
    private_mappings_of_files_without_a_name = "private-files";
    seals_of_memory_files = "seals";
    the_zero_device = "zero-device";
    shared_and_private_files = "files";
    flags = "flags";
    guard_regions = "guards";
    locking_what_is_mapped_later = "lock-future";
    locking_what_is_mapped_later_when_touched = "lock-future-on-fault";
    merging_of_equal_pages = "merge";
    a_heap_of_nothing = "no-heap";
    a_heap_that_ends_within_a_page = "odd-heap";
    /// Needs hardware with protection keys.
    protection_keys = "keys";
}

/// Address space that is only reserved costs nothing, and many mappings no more than each of them.
#[test]
fn reservations_and_many_mappings() {
    for user in User::all() {
        let stage = Stage::new("mappings", user);
        let original = stage.start_if_possible(&["reservations"]).unwrap();
        stage.save(original.pid(), "second", true);
        let bytes = |name: &str| fs::metadata(stage.path(name)).unwrap().len();
        let (pages, described) = (bytes("second/pages.snap"), bytes("second/process.json"));
        assert!(
            pages < 8 << 20 && described < 16 << 20,
            "{pages} {described}"
        );
        original.expect_killed();
        stage.restore("second").go_on_and_be_fine();
    }
}

/// Saving and restoring need a mapping themselves.
#[test]
fn as_many_mappings_as_there_can_be_are_too_many() {
    let stage = Stage::new("mappings", User::Ourselves);
    let program = stage.start_if_possible(&["most"]).unwrap();
    let wanted = "mappings that a process can have here";
    assert!(stage.check(program.pid()).contains(wanted));
    let refusal = stage.try_save(program.pid(), "image", false).unwrap_err();
    assert!(refusal.contains(wanted), "{refusal}");
    program.go_on_and_be_fine();

    let program = stage.start_if_possible(&["almost-most"]).unwrap();
    generations(&stage, program);
}

/// The system's huge pages, of which these tests take some.
static HUGE_PAGES: Mutex<()> = Mutex::new(());

/// Has the system set some huge pages aside, if it lets us.
struct HugePages(String);

impl HugePages {
    const FILE: &str = "/proc/sys/vm/nr_hugepages";

    fn reserve() -> Option<Self> {
        let before = fs::read_to_string(Self::FILE).ok()?;
        fs::write(Self::FILE, "8").ok()?;
        let pages = Self(before);
        let now = fs::read_to_string(Self::FILE).ok()?;
        (now.trim() == "8").then_some(pages)
    }
}

impl Drop for HugePages {
    fn drop(&mut self) {
        let _ = fs::write(Self::FILE, &self.0);
    }
}

#[test]
fn huge_pages() {
    let _alone = HUGE_PAGES.lock();
    let Some(_pages) = HugePages::reserve() else {
        eprintln!("no huge pages are to be had here");
        return;
    };
    for kind in ["huge-private", "huge-shared", "huge-memfd", "huge-segment"] {
        survives(kind);
    }
    let stage = Stage::new("mappings", User::Ourselves);
    let original = stage.start_if_possible(&["huge-private"]).unwrap();
    stage.save(original.pid(), "image", true);
    original.expect_killed();
    fs::write(HugePages::FILE, "1").unwrap();
    let refusal = stage.try_restore("image").err().unwrap();
    assert!(
        refusal.contains("huge pages of 2048 KiB: it needs 2"),
        "{refusal}"
    );
}

/// As when a package is upgraded while its programs run.
#[test]
fn a_library_that_was_removed() {
    for user in User::all() {
        let stage = Stage::new("mappings", user);
        let make = || {
            let source = stage.path("library.c");
            fs::write(
                &source,
                "int next(void) { static int calls; return ++calls; }",
            )
            .unwrap();
            let mut command = Command::new("cc");
            command.args(["-shared", "-fPIC", "-o"]);
            let status = command.arg(stage.path("library.so")).arg(source).status();
            assert!(status.unwrap().success());
            // The program removes it.
            stage.start_if_possible(&["library"]).unwrap()
        };
        let original = make();
        stage.save(original.pid(), "first", false);
        original.go_on_and_be_fine();
        generations(&stage, make());
    }
}

#[test]
fn a_program_that_was_removed_or_replaced() {
    for user in User::all() {
        for replaced in [false, true] {
            let stage = Stage::new("mappings", user);
            let program = stage.path("program");
            fs::copy(stage.path("mappings"), &program).unwrap();
            let start = || {
                fs::copy(stage.path("mappings"), &program).unwrap();
                let running = stage
                    .start_through_shell("exec ./program nothing", std::process::Stdio::null());
                fs::remove_file(&program).unwrap();
                if replaced {
                    fs::write(&program, "another version").unwrap();
                }
                running
            };
            let original = start();
            stage.save(original.pid(), "first", false);
            original.go_on_and_be_fine();
            let _ = fs::remove_file(&program);
            let original = start();
            stage.save(original.pid(), "second", true);
            original.expect_killed();
            let restored = stage.restore("second");
            let now = fs::read(format!("/proc/{}/exe", restored.pid())).unwrap();
            assert_eq!(now, fs::read(stage.path("mappings")).unwrap());
            generations(&stage, restored);
        }
    }
}

/// POSIX shared memory comes back with what was in it, whether it is gone by then or something else is in it.
#[test]
fn posix_shared_memory() {
    for user in User::all() {
        let stage = Stage::new("posix_shm", user);
        let original = stage.start();
        stage.save(original.pid(), "first", false);
        original.go_on_and_be_fine();

        let original = stage.start();
        let pid = original.pid();
        let [first, second] =
            ["first", "second"].map(|n| format!("/dev/shm/snapify-test-{pid}-{n}"));
        stage.save(pid, "second", true);
        original.expect_killed();
        std::fs::write(&first, [b'x'; 100_000]).unwrap();
        std::fs::remove_file(&second).unwrap();
        stage.restore("second").go_on_and_be_fine();
        // It has removed both.
        let restored = stage.restore("second");
        stage.save(restored.pid(), "third", true);
        restored.expect_killed();
        for file in [&first, &second] {
            std::fs::remove_file(file).unwrap();
        }
        stage.restore("third").go_on_and_be_fine();
        assert!(!std::fs::exists(&first).unwrap());
    }
}
