//! Chains of incremental points: every one of them gives back the memory of its moment, whatever changed in between.

mod support;

use snapify_store::{
    Chain, PAGE_SIZE, PageFile, PageRange, PageWrite, Snapshot, SpaceId, StoreError, inspect,
    verify, write_pages,
};
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;
use support::running::{FILE, Program, restarted, two_chains};
use support::{Filled, Memory, disk_dir, fast_dir, header, program};

#[test]
fn every_point_of_random_chains_gives_back_its_moment() {
    for seed in 0..40 {
        let dir = fast_dir();
        let chain = Chain::open_or_create(dir.path(), &program()).unwrap();
        let mut running = Program::new(seed);
        let mut then: Vec<Memory> = Vec::new();
        for round in 0..8 {
            running.go_on();
            let number = if round == 5 && seed % 3 == 0 {
                // Restarted from an earlier point, it goes on from there.
                let back = running.chance.below(5) as u32 + 1;
                running.memory = then[back as usize - 1].clone();
                running.dirty.clear();
                running.go_on();
                running.checkpoint(&chain, Some(back), seed % 2 == 0)
            } else {
                let compare = running.chance.below(3) == 0;
                running.checkpoint(&chain, None, compare)
            };
            then.push(running.memory.clone());
            assert_eq!(number as usize, then.len());
        }
        for (memory, number) in then.iter().zip(1..) {
            restarted(dir.path(), number).assert_is(memory);
        }
        let report = verify(dir.path(), None, &()).unwrap();
        assert!(report.is_sound(), "{:?}", report.problems);
        assert_eq!(report.newest_sound, Some(8));
    }
}

#[test]
fn an_incremental_point_costs_what_has_changed() {
    let dir = disk_dir();
    let chain = Chain::open_or_create(dir.path(), &program()).unwrap();
    let mut running = Program::new(1);
    for page in 0..4000 {
        running.put((SpaceId(0), page * PAGE_SIZE), page + 1);
    }
    running.checkpoint(&chain, None, false);
    for page in (0..4000).step_by(100) {
        running.put((SpaceId(0), page * PAGE_SIZE), page + 10_000);
    }
    running.checkpoint(&chain, None, false);
    // Looked at all over, nothing new is found.
    running.checkpoint(&chain, None, true);
    let report = inspect(dir.path()).unwrap();
    let figures: Vec<_> = report
        .points
        .iter()
        .map(|point| {
            let pages = point.members[0].files[0].pages.unwrap();
            (point.parent, pages.pages_stored, pages.pages_same)
        })
        .collect();
    assert_eq!(
        figures,
        [(None, 4000, 0), (Some(1), 40, 0), (Some(2), 0, 4000)]
    );
    restarted(dir.path(), 3).assert_is(&running.memory);
    let snapshot = Snapshot::open(dir.path(), None).unwrap();
    assert_eq!(snapshot.chain(), [3, 2, 1]);
    let pages = snapshot.member("host").unwrap().pages(FILE).unwrap();
    assert_eq!((pages.files(), pages.bytes(SpaceId(0))), (3, 4000 * 4096));
}

#[test]
fn a_full_point_is_written_as_before_there_were_incremental_ones() {
    let dir = fast_dir();
    support::small_chain(dir.path());
    let pages = fs::read(dir.path().join("000001/host/pages.snap")).unwrap();
    assert_eq!(pages[8..12], [1, 0, 0, 0]);
    let manifest = fs::read_to_string(dir.path().join("000001/manifest.json")).unwrap();
    assert!(manifest.contains("\"version\": 1,"), "{manifest}");
    assert!(!manifest.contains("pages_s\"") && !manifest.contains("pages_shared"));
}

fn open(dir: &Path, at: u32) -> Result<(), StoreError> {
    let snapshot = Snapshot::open(dir, Some(at))?;
    snapshot.member("host")?.pages(FILE)?;
    Ok(())
}

/// Something that is done to a point's folder.
type Harm = (&'static str, fn(&Path));

#[test]
fn a_missing_or_damaged_link_is_named_and_the_newest_whole_point_offered() {
    let breaks: [Harm; 4] = [
        ("the folder is gone", |point| {
            fs::remove_dir_all(point).unwrap();
        }),
        ("the pages are gone", |point| {
            fs::remove_file(point.join("host/pages.snap")).unwrap();
        }),
        ("the manifest is damaged", |point| {
            let path = point.join("manifest.json");
            let text = fs::read_to_string(&path).unwrap();
            fs::write(path, text.replacen("host", "hast", 1)).unwrap();
        }),
        ("the index is damaged", |point| {
            let path = point.join("host/pages.snap");
            let file = File::options().write(true).open(&path).unwrap();
            let end = file.metadata().unwrap().len();
            file.write_all_at(&[0xa5; 8], end - 4096).unwrap();
        }),
    ];
    for (what, harm) in breaks {
        for victim in 1..=5u32 {
            let dir = fast_dir();
            let then = two_chains(dir.path());
            harm(&dir.path().join(format!("{victim:06}")));
            let broken: Vec<u32> = match victim {
                1 => vec![1, 2, 3],
                2 => vec![2, 3],
                4 => vec![4, 5],
                other => vec![other],
            };
            let newest = (1..=5).rev().find(|n| !broken.contains(n));
            let report = verify(dir.path(), None, &()).unwrap();
            assert_eq!(report.newest_sound, newest, "{what} {victim}");
            for number in 1..=5u32 {
                let gone = what == "the folder is gone" && number == victim;
                match open(dir.path(), number) {
                    Ok(()) => {
                        assert!(!broken.contains(&number), "{what}: {victim} for {number}");
                        restarted(dir.path(), number).assert_is(&then[number as usize - 1]);
                    }
                    Err(StoreError::NoPoint { .. }) => assert!(gone),
                    Err(error @ StoreError::Broken { .. }) => {
                        let StoreError::Broken { link, whole, .. } = error else {
                            unreachable!()
                        };
                        assert_eq!((link, whole), (victim, newest), "{what}");
                        assert!(broken.contains(&number));
                    }
                    Err(other) => panic!("{what}: {victim} for {number}: {other}"),
                }
            }
        }
    }
}

#[test]
fn a_broken_point_cannot_be_built_upon_but_a_full_one_begun() {
    let dir = fast_dir();
    two_chains(dir.path());
    fs::remove_file(dir.path().join("000004/host/pages.snap")).unwrap();
    let chain = Chain::open_or_create(dir.path(), &program()).unwrap();
    let error = chain.begin_incremental(None).unwrap_err();
    assert!(error.to_string().contains("restart --at 3"), "{error}");
    assert!(matches!(
        chain.begin_incremental(Some(9)),
        Err(StoreError::NoPoint { .. })
    ));
    assert_eq!(chain.begin_incremental(Some(3)).unwrap().parent(), Some(3));
    assert_eq!(chain.begin().unwrap().commit(header()).unwrap().number, 6);
}

#[test]
fn what_builds_on_another_file_is_not_committed_nor_joined() {
    let dir = fast_dir();
    let chain = Chain::open_or_create(dir.path(), &program()).unwrap();
    let mut running = Program::new(5);
    for round in 0..2 {
        running.put((SpaceId(0), 0), round + 1);
        running.checkpoint(&chain, None, false);
    }
    let first = Snapshot::open(dir.path(), Some(1)).unwrap();
    let first = first.member("host").unwrap().pages(FILE).unwrap();
    let write = |out| {
        PageWrite::changes(first.summary().id(), &[])
            .write(out, FILE, &running.memory, &())
            .unwrap()
    };
    let staging = chain.begin_incremental(None).unwrap();
    let member = staging.member("host").unwrap();
    let summary = write(member.create(FILE).unwrap());
    member.record_pages(FILE, summary).unwrap();
    let error = staging.commit(header()).unwrap_err();
    assert!(matches!(error, StoreError::Damaged { .. }), "{error}");
    // A full point takes no such file either.
    let staging = chain.begin().unwrap();
    let member = staging.member("host").unwrap();
    let summary = write(member.create(FILE).unwrap());
    member.record_pages(FILE, summary).unwrap();
    assert!(staging.commit(header()).is_err());

    let path = dir.path().join("odd");
    write(File::create_new(&path).unwrap());
    let open = |path: &Path| PageFile::open(File::open(path).unwrap(), path.to_owned()).unwrap();
    let alone = open(&path);
    assert_eq!(alone.needs(), Some(first.summary().id()));
    assert!(matches!(
        alone.fill(&Filled::default(), &()),
        Err(StoreError::Incomplete { .. })
    ));
    let second = dir.path().join("000002/host/pages.snap");
    assert!(alone.with_parents(vec![open(&second)]).is_err());
    let joined = open(&path).with_parents(vec![first]).unwrap();
    assert_eq!(joined.needs(), None);
    joined.fill(&Filled::default(), &()).unwrap();
    fs::remove_file(path).unwrap();
}

#[test]
fn a_chain_that_grows_long_asks_for_a_full_point() {
    let dir = fast_dir();
    let chain = Chain::open_or_create(dir.path(), &program()).unwrap();
    let mut running = Program::new(5);
    let mut longest = 0;
    for round in 0..70 {
        running.put((SpaceId(0), round * PAGE_SIZE), round + 1);
        let number = running.checkpoint(&chain, None, false);
        let snapshot = Snapshot::open(dir.path(), Some(number)).unwrap();
        longest = longest.max(snapshot.chain().len());
    }
    assert_eq!(longest, 65);
    restarted(dir.path(), 70).assert_is(&running.memory);
}

#[test]
fn ranges_of_different_lists_must_not_overlap() {
    let memory = Memory::default();
    let range = |page| PageRange {
        space: SpaceId(0),
        start: page * PAGE_SIZE,
        bytes: 2 * PAGE_SIZE,
    };
    let dir = fast_dir();
    let create = || File::create(dir.path().join("x")).unwrap();
    let full = write_pages(create(), FILE, &[], &memory, &()).unwrap();
    let (zero, gone) = ([range(4)], [range(5)]);
    let write = PageWrite::changes(full.id(), &[]).zero(&zero).gone(&gone);
    assert!(matches!(
        write.write(create(), FILE, &memory, &()),
        Err(StoreError::Range { .. })
    ));
}
