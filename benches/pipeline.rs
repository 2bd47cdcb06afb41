//! Memory of the kernels written without compression, compressed and then written, and both at once: figure 11 of paper 4.
//!
//! Where the paper has a GPU compress, all processors do.

use crate::kernel::{KERNELS, Kernel};
use crate::place::Place;
use crate::store::{Memory, options, range, write};
use crate::table::{median, print};
use anyhow::{Result, ensure};
use snapify_plan::bars::Bars;
use snapify_store::{PAGE_SIZE, PageSink, PageWrite, Snapshot, SpaceId};
use std::path::Path;
use std::sync::Mutex;

const ROUNDS: usize = 3;
const CLASS: &str = "B";
/// The paper's codec, and one that keeps up with storage.
const CODECS: [&str; 2] = ["deflate:1", "lz4"];
const PROTOCOLS: [&str; 4] = [
    "uncompressed",
    "serial",
    "pipelined, one processor",
    "pipelined, all processors",
];

pub fn run(place: &Place) -> Result<()> {
    let [_, (_, disk)] = place.directories();
    let mut found: Vec<Vec<(String, Vec<f64>)>> = vec![Vec::new(); CODECS.len()];
    let mut rows = Vec::new();
    for name in KERNELS {
        let memory = memory_of(place, name)?;
        for (codec, found) in CODECS.iter().zip(&mut found) {
            let (times, ratio) = measure(disk, &memory, codec)?;
            let mut row = vec![
                name.to_owned(),
                format!("{} MiB", memory.0.len() >> 20),
                (*codec).to_owned(),
                format!("{ratio:.2}"),
            ];
            row.extend(times.iter().copied().map(milliseconds));
            rows.push(row);
            found.push((name.to_owned(), times.to_vec()));
        }
    }
    let mut head = vec!["kernel", "memory", "codec", "ratio"];
    head.extend(PROTOCOLS);
    print(
        &format!("Time to write the memory of kernels of class {CLASS} to disk"),
        &head,
        &rows,
    );
    let chart = |(codec, groups): (&&str, Vec<_>)| Bars {
        title: format!("Memory of class {CLASS} to disk, {codec}"),
        series: PROTOCOLS.map(str::to_owned).into(),
        groups,
        text: milliseconds,
    };
    let charts: Vec<Bars> = CODECS.iter().zip(found).map(chart).collect();
    place.plot("pipeline.svg", "Compressing and storing", &charts)
}

fn milliseconds(seconds: f64) -> String {
    format!("{:.0} ms", seconds * 1e3)
}

/// The pages of a kernel in the middle of its work, one after the other.
fn memory_of(place: &Place, name: &str) -> Result<Memory> {
    let dir = place.scratch().join("kernel");
    let mut kernel = Kernel::start(place, name, CLASS)?;
    kernel.steps(3)?;
    let output = place
        .snapify()
        .args(["checkpoint", &kernel.id().to_string()])
        .arg(&dir)
        .output()?;
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{errors}");
    drop(kernel);
    let pages = Snapshot::open(&dir, None)?
        .member("host")?
        .pages("pages.snap")?;
    let gathered = Gathered::default();
    pages.fill(&gathered, &())?;
    std::fs::remove_dir_all(&dir)?;
    Ok(Memory(
        gathered.0.into_inner().unwrap_or_else(|p| p.into_inner()),
    ))
}

/// Pages in whatever order they come.
#[derive(Default)]
struct Gathered(Mutex<Vec<u8>>);

impl PageSink for Gathered {
    fn write(&self, _: SpaceId, _: u64, data: &[u8]) -> std::io::Result<()> {
        let mut all = self.0.lock().unwrap_or_else(|p| p.into_inner());
        all.extend_from_slice(data);
        Ok(())
    }
}

/// Seconds that each of the protocols takes, and bytes after compression for each before.
fn measure(dir: &Path, memory: &Memory, codec: &str) -> Result<([f64; 4], f64)> {
    let path = dir.join("pages.snap");
    let pages = memory.0.len() as u64 / PAGE_SIZE;
    let all = [range(0, pages)];
    let (one, every) = (options(codec, Some(1))?, options(codec, None)?);
    let [one, every] = [one, every].map(|options| (PageWrite::full(&all), options));
    let (one, every) = (one.0.options(&one.1), every.0.options(&every.1));
    let mut times: [Vec<f64>; 4] = Default::default();
    let mut ratio = 1.0;
    for _ in 0..ROUNDS {
        times[0].push(write(&path, &PageWrite::full(&all), memory)?.0);
        // All of it is compressed before any of it is stored.
        let (compressing, summary) = write(Path::new("/dev/null"), &one, memory)?;
        let part = [range(0, (summary.file_bytes / PAGE_SIZE).clamp(1, pages))];
        let (storing, _) = write(&path, &PageWrite::full(&part), memory)?;
        times[1].push(compressing + storing);
        times[2].push(write(&path, &one, memory)?.0);
        times[3].push(write(&path, &every, memory)?.0);
        ratio = summary.file_bytes as f64 / memory.0.len() as f64;
    }
    std::fs::remove_file(&path)?;
    Ok((times.map(median), ratio))
}
