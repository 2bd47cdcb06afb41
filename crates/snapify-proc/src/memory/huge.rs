//! Huge TLB pages (hugetlb): there is a fixed number of them, which a restart must find free.

use super::image::{MappingKind, MemoryImage};
use crate::error::Obstacle;
use crate::image::{Backing, ObjectImage};
use std::collections::BTreeMap;
use std::fs;

/// Where the size is in the flags of mmap(2) and memfd_create(2).
const SIZE_SHIFT: u32 = 26;

/// The flags that ask mmap(2) for pages of that size.
pub(super) fn map_flags(page_bytes: u64) -> u64 {
    libc::MAP_HUGETLB as u64 | u64::from(page_bytes.trailing_zeros()) << SIZE_SHIFT
}

/// The flags that ask memfd_create(2) for pages of that size.
pub(crate) fn memfd_flags(page_bytes: u64) -> u32 {
    libc::MFD_HUGETLB | page_bytes.trailing_zeros() << SIZE_SHIFT
}

/// Compares what mappings and objects need with what is free.
pub(super) fn preflight(image: &MemoryImage, objects: &[ObjectImage]) -> Vec<Obstacle> {
    let mut needed: BTreeMap<u64, u64> = BTreeMap::new();
    for mapping in &image.mappings {
        if let (MappingKind::Private, Some(page)) = (&mapping.kind, mapping.flags.huge_page) {
            // Without a reservation pages are taken as they are touched.
            let bytes = match mapping.flags.no_reserve {
                true => mapping.saved,
                false => mapping.bytes(),
            };
            *needed.entry(page).or_default() += bytes;
        }
    }
    for object in objects {
        if let Backing::HugePages { page_bytes } = object.backing {
            *needed.entry(page_bytes).or_default() += object.bytes;
        }
    }
    needed
        .into_iter()
        .filter_map(|(page, bytes)| missing(page, bytes))
        .collect()
}

fn missing(page: u64, bytes: u64) -> Option<Obstacle> {
    let folder = format!("/sys/kernel/mm/hugepages/hugepages-{}kB", page / 1024);
    let number = |name: &str| {
        let text = fs::read_to_string(format!("{folder}/{name}")).ok()?;
        text.trim().parse::<u64>().ok()
    };
    let needed = bytes.div_ceil(page.max(1));
    let most = number("nr_overcommit_hugepages").unwrap_or(0);
    let free = match (number("free_hugepages"), number("resv_hugepages")) {
        (Some(free), Some(reserved)) => free.saturating_sub(reserved) + most,
        _ => 0,
    };
    (needed > free).then(|| {
        let hint = format!("have root write a larger number to {folder}/nr_hugepages");
        Obstacle::new(
            format!("huge pages of {} KiB", page / 1024),
            format!("it needs {needed}, and {free} are free here"),
        )
        .with_hint(hint)
    })
}
