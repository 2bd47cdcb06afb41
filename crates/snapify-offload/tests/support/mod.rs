//! Cards for tests, and the least supervisor that connects a host library with them.
#![allow(dead_code, unsafe_code)]

use snapify_fabric::{Channel, Listener};
use snapify_offload::control::{
    CardInfo, CardToSupervisor, HostId, HostToSupervisor, SupervisorToCard, SupervisorToHost,
    VERSION,
};
use snapify_offload::host::{Process, Runtime};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::PathBuf;
use std::process::{Child, Command};
use std::sync::Arc;
use tempfile::TempDir;

pub struct Card {
    pub daemon: Child,
    pub service: Channel,
    pub warnings: Vec<String>,
}

/// A supervisor with its cards, and a host library (this process) that is connected to them.
pub struct House {
    pub cards: Vec<Card>,
    /// The supervisor's end of the connection to the host library.
    pub agent: Channel,
    pub runtime: Arc<Runtime>,
    pub dir: TempDir,
}

pub fn card(index: u32, memory: u64, sandbox: bool) -> Card {
    let (ours, theirs) = Channel::pair().unwrap();
    let theirs = OwnedFd::from(theirs);
    rustix::io::fcntl_setfd(&theirs, rustix::io::FdFlags::empty()).unwrap();
    let target = PathBuf::from(env!("CARGO_BIN_EXE_snapify-offload-process"));
    let daemon = Command::new(target.parent().unwrap().join("examples/plain_card"))
        .args([
            index.to_string(),
            memory.to_string(),
            theirs.as_raw_fd().to_string(),
        ])
        .arg(&target)
        .args(sandbox.then_some("sandbox"))
        .spawn()
        .unwrap();
    drop(theirs);
    let warnings = match ours.recv().unwrap().0 {
        CardToSupervisor::Ready {
            version: VERSION,
            card,
            warnings,
            ..
        } if card == (CardInfo { index, memory }) => warnings,
        other => panic!("{other:?}"),
    };
    Card {
        daemon,
        service: ours,
        warnings,
    }
}

impl Card {
    pub fn request(
        &self,
        request: &SupervisorToCard,
        fds: &[std::os::fd::BorrowedFd<'_>],
    ) -> CardToSupervisor {
        self.service.send(request, fds).unwrap();
        self.service.recv().unwrap().0
    }

    /// Ids of its offload processes.
    pub fn pids(&self) -> Vec<i32> {
        match self.request(&SupervisorToCard::Status, &[]) {
            CardToSupervisor::Status { processes, .. } => {
                processes.iter().map(|process| process.pid).collect()
            }
            other => panic!("{other:?}"),
        }
    }

    /// Waits until it has so many offload processes.
    pub fn await_count(&self, count: usize) {
        for _ in 0..500 {
            if self.pids().len() == count {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        panic!("there are {:?}", self.pids());
    }
}

impl Drop for Card {
    fn drop(&mut self) {
        let _ = self.service.send_now(&SupervisorToCard::Shutdown, &[]);
        while self.service.recv::<CardToSupervisor>().is_ok() {}
        let _ = self.daemon.wait();
    }
}

impl House {
    pub fn new(cards: u32, memory: u64) -> Self {
        Self::with(
            (0..cards).map(|index| card(index, memory, false)).collect(),
            memory,
            None,
        )
    }

    pub fn with(cards: Vec<Card>, memory: u64, host: Option<OwnedFd>) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("agent");
        let listener = Listener::bind(&path).unwrap();
        let connecting = {
            let path = path.clone();
            std::thread::spawn(move || Runtime::connect(&path))
        };
        let agent = listener.accept().unwrap();
        assert!(matches!(
            agent.recv().unwrap().0,
            HostToSupervisor::Hello {
                version: VERSION,
                ..
            }
        ));
        let mut ends = Vec::new();
        let mut infos = Vec::new();
        for (index, card) in (0..).zip(&cards) {
            let (ours, theirs) = Channel::pair().unwrap();
            let mut fds = vec![theirs.as_fd()];
            fds.extend(host.as_ref().map(AsFd::as_fd));
            let answer = card.request(&SupervisorToCard::Host { host: HostId(7) }, &fds);
            assert!(matches!(answer, CardToSupervisor::Accepted));
            ends.push(ours);
            infos.push(CardInfo { index, memory });
        }
        let fds: Vec<_> = ends.iter().map(AsFd::as_fd).collect();
        agent
            .send(
                &SupervisorToHost::Welcome {
                    version: VERSION,
                    cards: infos,
                },
                &fds,
            )
            .unwrap();
        let runtime = connecting.join().unwrap().unwrap();
        Self {
            cards,
            agent,
            runtime,
            dir,
        }
    }

    pub fn pause(&self) -> HostToSupervisor {
        self.agent.send(&SupervisorToHost::Pause, &[]).unwrap();
        self.agent.recv().unwrap().0
    }

    pub fn resume(&self) {
        self.agent.send(&SupervisorToHost::Resume, &[]).unwrap();
        assert!(matches!(
            self.agent.recv().unwrap().0,
            HostToSupervisor::Resumed
        ));
    }
}

/// Compiles C code into a device image.
pub fn image(code: &str) -> Vec<u8> {
    let dir = tempfile::tempdir().unwrap();
    let (source, out) = (dir.path().join("image.c"), dir.path().join("image.so"));
    std::fs::write(&source, code).unwrap();
    let status = Command::new("cc")
        .args(["-O1", "-shared", "-fPIC", "-o"])
        .args([&out, &source])
        .status()
        .unwrap();
    assert!(status.success());
    std::fs::read(&out).unwrap()
}

/// Loads C code into a process and returns the addresses of what is named.
pub fn load<const N: usize>(process: &Process, code: &str, names: [&str; N]) -> [u64; N] {
    let library = process.load_library(&image(code), "test image").unwrap();
    let addresses = process.function_addresses(&library, &names).unwrap();
    std::array::from_fn(|index| {
        addresses[index].unwrap_or_else(|| panic!("{} is missing", names[index]))
    })
}

pub fn write(process: &Process, to: u64, bytes: &[u8]) {
    // SAFETY: a slice is valid for its length.
    unsafe { process.write(to, bytes.as_ptr(), bytes.len()) }.unwrap();
}

pub fn read(process: &Process, from: u64, count: usize) -> Vec<u8> {
    let mut bytes = vec![0; count];
    // SAFETY: as above.
    unsafe { process.read(bytes.as_mut_ptr(), from, count) }.unwrap();
    bytes
}

pub fn write_word(process: &Process, to: u64, word: u64) {
    write(process, to, &word.to_ne_bytes());
}

pub fn read_word(process: &Process, from: u64) -> u64 {
    u64::from_ne_bytes(read(process, from, 8).try_into().unwrap())
}

/// Bytes that look random.
pub fn noise(count: usize, mut seed: u64) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(count + 8);
    while bytes.len() < count {
        seed = seed
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        bytes.extend((seed ^ seed >> 29).to_ne_bytes());
    }
    bytes.truncate(count);
    bytes
}
