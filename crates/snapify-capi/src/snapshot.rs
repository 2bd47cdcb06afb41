//! Snapshots of offload processes, from inside the application (paper 1, table 1).

use crate::error::{Code, Failure};
use crate::event::Event;
use crate::host::host;
use crate::process::Process;
use snapify_offload::OffloadError;
use snapify_offload::host::{ImageFiles, Saving, State, start_thread};
use std::collections::HashMap;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};

/// Names of the files of an image: those that snapshots of applications use.
const FILES: [&str; 3] = ["process.json", "pages.snap", "store.snap"];

/// What the operations return (`snapify_result`).
#[repr(i32)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Status {
    Success,
    InvalidArgument,
    InvalidProcess,
    OutOfTurn,
    NoSuchCard,
    FileError,
    ProcessDied,
    Failed,
}

/// An operation was refused, or failed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Refusal {
    pub status: Status,
    pub text: String,
}

/// The result of an operation.
pub type Result<T, E = Refusal> = std::result::Result<T, E>;

impl Refusal {
    /// A failure with words.
    pub fn new(status: Status, text: impl Into<String>) -> Self {
        let text = text.into();
        Self { status, text }
    }
}

impl From<Failure> for Refusal {
    fn from(failure: Failure) -> Self {
        let status = match failure.code {
            Code::InvalidHandle => {
                return Self::new(Status::InvalidProcess, "there is no such process");
            }
            Code::ProcessDied => Status::ProcessDied,
            _ => Status::Failed,
        };
        Self::new(status, failure.text)
    }
}

impl From<OffloadError> for Refusal {
    fn from(error: OffloadError) -> Self {
        let status = match &error {
            OffloadError::ProcessDied { .. } => Status::ProcessDied,
            OffloadError::NoSuchCard { .. } => Status::NoSuchCard,
            _ => Status::Failed,
        };
        Self::new(status, error.to_string())
    }
}

/// Posts the caller's semaphore.
pub type Post = Box<dyn FnOnce() + Send>;

/// A capture, for whoever waits for it.
struct Capture {
    over: Arc<Event>,
    result: Mutex<Result<()>>,
}

/// The captures that nobody has waited for yet, by the address of the caller's structure.
static CAPTURES: LazyLock<Mutex<HashMap<usize, Arc<Capture>>>> = LazyLock::new(Mutex::default);

fn captures() -> MutexGuard<'static, HashMap<usize, Arc<Capture>>> {
    CAPTURES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The process of a handle, if it is in the state that an operation needs.
fn process(handle: u64, needed: State) -> Result<Arc<Process>> {
    let process = host()?.processes.get(handle)?;
    let state = process.offload.state();
    if state == State::Dead {
        process.offload.status()?;
    }
    if state == needed {
        return Ok(process);
    }
    let is = match state {
        State::Running => "is running",
        State::Paused => "is paused",
        State::SwappedOut => "is swapped out",
        State::Dead => "has died",
    };
    let must = match needed {
        State::Running => "running",
        State::Paused => "paused",
        State::SwappedOut => "swapped out",
        State::Dead => "dead",
    };
    let text = format!("the process {is}; it must be {must} for this");
    Err(Refusal::new(Status::OutOfTurn, text))
}

fn file_error(what: &str, path: &Path) -> impl Fn(io::Error) -> Refusal {
    move |error| {
        let text = format!("cannot {what} {}: {error}", path.display());
        Refusal::new(Status::FileError, text)
    }
}

/// The directory of a process's image below the one that the caller has named: several processes may have the same.
fn image_of(path: &Path, process: &Process) -> PathBuf {
    path.join(format!("offload-{}", process.offload.id()))
}

/// Drains all channels to a process, and keeps them empty.
pub fn pause(handle: u64, path: &Path) -> Result<()> {
    let process = process(handle, State::Running)?;
    // Told now: later the process stands still.
    fs::create_dir_all(path).map_err(file_error("make the directory", path))?;
    tempfile_in(path).map_err(file_error("write to", path))?;
    process.offload.pause()?;
    Ok(())
}

/// Makes sure that files can be made in a directory.
fn tempfile_in(path: &Path) -> io::Result<()> {
    let probe = path.join(format!(".snapify-{}", std::process::id()));
    File::create(&probe)?;
    fs::remove_file(&probe)
}

/// Begins to save a process. `key` is the address of the caller's structure; `prepare` is called before anything is begun,
/// `post` when it is over, before anybody who waits for it is told.
pub fn capture(
    handle: u64,
    key: usize,
    path: &Path,
    terminate: bool,
    prepare: impl FnOnce(),
    post: Post,
) -> Result<()> {
    let process = process(handle, State::Paused)?;
    // One that goes on with the same structure would post its semaphore.
    if captures()
        .get(&key)
        .is_some_and(|known| known.over.outcome().is_none())
    {
        let text = "a capture that was begun with this snapshot is not complete";
        return Err(Refusal::new(Status::OutOfTurn, text));
    }
    let image = image_of(path, &process);
    let staging = image.with_extension("new");
    let _ = fs::remove_dir_all(&staging);
    fs::create_dir_all(&staging).map_err(file_error("make the directory", &staging))?;
    let create = |name: &str| {
        let path = staging.join(name);
        let made = File::options()
            .read(true)
            .write(true)
            .create_new(true)
            .open(&path);
        made.map_err(file_error("make", &path))
    };
    let [first, second, third] = FILES;
    let files = ImageFiles {
        process: create(first)?,
        pages: create(second)?,
        store: create(third)?,
    };
    prepare();
    let saving = process
        .offload
        .capture(&files, terminate)
        .inspect_err(|_| {
            let _ = fs::remove_dir_all(&staging);
        })?;
    let capture = Arc::new(Capture {
        over: Event::new(),
        result: Mutex::new(Ok(())),
    });
    captures().insert(key, capture.clone());
    let begun = start_thread("snapify-capture", move || {
        let saved = complete(&saving, &files, &staging, &image);
        let result = saved.and_then(|()| {
            if terminate {
                process.offload.release(Some(&image))?;
            }
            Ok(())
        });
        *capture
            .result
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = result;
        // First: who waits may free the structure with the semaphore.
        post();
        capture.over.fire(Ok(()));
    });
    begun.map_err(|error| {
        captures().remove(&key);
        let text = format!("cannot start a thread that waits for the capture: {error}");
        Refusal::new(Status::Failed, text)
    })
}

/// Waits until an image is complete and on stable storage, and gives it its name.
fn complete(saving: &Saving, files: &ImageFiles, staging: &Path, image: &Path) -> Result<()> {
    let saved = saving.wait();
    if saved.is_err() {
        let _ = fs::remove_dir_all(staging);
    }
    saved?;
    let stored = [&files.process, &files.pages, &files.store]
        .into_iter()
        .try_for_each(File::sync_all);
    stored.map_err(file_error("store the files in", staging))?;
    // Of an earlier capture.
    if image.exists() {
        fs::remove_dir_all(image).map_err(file_error("replace", image))?;
    }
    fs::rename(staging, image).map_err(file_error("rename to", image))?;
    let parent = image.parent().unwrap_or(Path::new("."));
    let synced = File::open(parent).and_then(|parent| parent.sync_all());
    synced.map_err(file_error("store", parent))
}

/// Waits for the capture that was begun with a structure.
pub fn wait(key: usize) -> Result<()> {
    let Some(capture) = captures().get(&key).cloned() else {
        let text = "no capture was begun with this snapshot, or it was waited for already";
        return Err(Refusal::new(Status::OutOfTurn, text));
    };
    let _ = capture.over.wait();
    let mut captures = captures();
    if captures
        .get(&key)
        .is_some_and(|known| Arc::ptr_eq(known, &capture))
    {
        captures.remove(&key);
    }
    drop(captures);
    capture
        .result
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .clone()
}

/// Lets a process go on.
pub fn resume(handle: u64) -> Result<()> {
    process(handle, State::Paused)?.offload.resume()?;
    Ok(())
}

/// Rebuilds a process that is swapped out.
pub fn restore(handle: u64, path: &Path, device: i32) -> Result<()> {
    let process = process(handle, State::SwappedOut)?;
    let cards = host()?.cards()?;
    let card = u32::try_from(device).ok().filter(|card| *card < cards);
    let card = card.ok_or_else(|| {
        let text = format!("there is no card {device}: this program has {cards}");
        Refusal::new(Status::NoSuchCard, text)
    })?;
    let image = image_of(path, &process);
    let open = |name: &str| {
        let path = image.join(name);
        File::open(&path).map_err(file_error("open", &path))
    };
    let [first, second, third] = FILES;
    let files = ImageFiles {
        process: open(first)?,
        pages: open(second)?,
        store: open(third)?,
    };
    process.offload.restore(card, &files)?;
    Ok(())
}

/// The card that a process is on.
pub fn device(handle: u64) -> Result<i32> {
    let process = host()?.processes.get(handle)?;
    Ok(i32::try_from(process.offload.card()).unwrap_or(-1))
}
