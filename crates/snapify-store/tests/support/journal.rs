//! What a program does to the files below a directory, recorded call by call; and what a loss of power can leave of it.
//!
//! The program is traced (ptrace(2)), so that nothing of what it does is missed, and nothing in it is made for tests.
//! Of the disk no more is assumed than POSIX promises: what was written is there after fsync(2) of the file, names are
//! there after fsync of the directory, a rename happens as a whole. Everything else may be lost or torn, in any order.

use super::Chance;
use nix::sys::ptrace;
use nix::sys::signal::Signal;
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A file or directory, by the order of their making; 0 is the directory that is watched.
type Id = usize;

/// A name in a directory.
type Name = (Id, String);

/// A call that has succeeded.
pub enum Op {
    Create {
        at: Name,
        id: Id,
        folder: bool,
    },
    Link {
        at: Name,
        id: Id,
    },
    Remove {
        at: Name,
    },
    Rename {
        from: Name,
        to: Name,
        exchange: bool,
    },
    Write {
        id: Id,
        offset: u64,
        data: Vec<u8>,
    },
    SetLen {
        id: Id,
        bytes: u64,
        grow: bool,
    },
    Sync {
        id: Id,
    },
    /// A line on standard output.
    Said(String),
}

#[derive(Clone)]
enum Node {
    Folder(BTreeMap<String, Id>),
    File(Vec<u8>),
}

/// Runs `command`, and records what it does below `root`.
#[allow(clippy::zombie_processes)] // it is waited for as a tracee
pub fn record(command: &mut Command, root: &Path) -> Vec<Op> {
    // SAFETY: ptrace(PTRACE_TRACEME) is async-signal-safe and concerns only the child.
    unsafe {
        command.pre_exec(|| ptrace::traceme().map_err(Into::into));
    }
    let child = command.spawn().unwrap();
    let pid = Pid::from_raw(child.id() as i32);
    assert!(matches!(
        waitpid(pid, None).unwrap(),
        WaitStatus::Stopped(_, Signal::SIGTRAP)
    ));
    let options = ptrace::Options::PTRACE_O_TRACESYSGOOD
        | ptrace::Options::PTRACE_O_TRACECLONE
        | ptrace::Options::PTRACE_O_EXITKILL;
    ptrace::setoptions(pid, options).unwrap();
    ptrace::syscall(pid, None).unwrap();
    let mut recorder = Recorder {
        pid,
        root: root.canonicalize().unwrap(),
        memory: File::open(format!("/proc/{pid}/mem")).unwrap(),
        nodes: vec![Node::Folder(BTreeMap::new())],
        ids: HashMap::new(),
        ops: Vec::new(),
        line: String::new(),
    };
    let root_ino = fs::metadata(root).unwrap().ino();
    recorder.ids.insert(root_ino, 0);
    let mut begun = HashSet::from([pid]);
    // Other threads of the test wait for theirs.
    let mine = WaitPidFlag::__WALL | WaitPidFlag::__WNOTHREAD;
    loop {
        let status = waitpid(Pid::from_raw(-1), Some(mine)).unwrap();
        let (thread, signal) = match status {
            WaitStatus::Exited(ended, code) if ended == pid => {
                assert_eq!(code, 0, "the program failed");
                return recorder.ops;
            }
            WaitStatus::Signaled(ended, signal, _) if ended == pid => {
                panic!("the program was killed by {signal}");
            }
            WaitStatus::PtraceSyscall(thread) => {
                recorder.call(thread);
                (thread, None)
            }
            WaitStatus::PtraceEvent(thread, ..) => (thread, None),
            // A new thread begins with a stop of its own.
            WaitStatus::Stopped(thread, Signal::SIGSTOP) if begun.insert(thread) => (thread, None),
            WaitStatus::Stopped(thread, signal) => (thread, Some(signal)),
            _ => continue,
        };
        // A thread that is just ending is gone: its end is told in another way.
        let _ = ptrace::syscall(thread, signal);
    }
}

struct Recorder {
    pid: Pid,
    root: PathBuf,
    memory: File,
    nodes: Vec<Node>,
    /// By inode number.
    ids: HashMap<u64, Id>,
    ops: Vec<Op>,
    line: String,
}

impl Recorder {
    /// Looks at a call that begins or ends; a beginning has no result yet.
    fn call(&mut self, thread: Pid) {
        let Ok(regs) = ptrace::getregs(thread) else {
            return;
        };
        let result = regs.rax as i64;
        if result < 0 {
            return;
        }
        let (a, b, c, d) = (regs.rdi, regs.rsi, regs.rdx, regs.r10);
        let cwd = libc::AT_FDCWD as u64;
        match regs.orig_rax as i64 {
            libc::SYS_openat if c as i32 & libc::O_CREAT != 0 => self.create(a, b, false),
            libc::SYS_open if b as i32 & libc::O_CREAT != 0 => self.create(cwd, a, false),
            libc::SYS_mkdir => self.create(cwd, a, true),
            libc::SYS_mkdirat => self.create(a, b, true),
            libc::SYS_write => self.write(a, b, result as usize, None),
            libc::SYS_pwrite64 => self.write(a, b, result as usize, Some(d)),
            libc::SYS_ftruncate => self.set_len(a, b, false),
            libc::SYS_fallocate => self.set_len(a, c + d, true),
            libc::SYS_fsync | libc::SYS_fdatasync => {
                if let Some(id) = self.id_of(a) {
                    self.ops.push(Op::Sync { id });
                }
            }
            libc::SYS_rename => self.rename((cwd, a), (cwd, b), 0),
            libc::SYS_renameat => self.rename((a, b), (c, d), 0),
            libc::SYS_renameat2 => self.rename((a, b), (c, d), regs.r8 as u32),
            libc::SYS_unlink | libc::SYS_rmdir => self.remove(cwd, a),
            libc::SYS_unlinkat => self.remove(a, b),
            libc::SYS_link => self.link((cwd, a), (cwd, b)),
            libc::SYS_linkat => self.link((a, b), (c, d)),
            libc::SYS_writev
            | libc::SYS_pwritev
            | libc::SYS_copy_file_range
            | libc::SYS_sendfile => {
                let to = if regs.orig_rax as i64 == libc::SYS_copy_file_range {
                    c
                } else {
                    a
                };
                assert!(self.id_of(to).is_none(), "a call that is not recorded");
            }
            _ => {}
        }
    }

    fn id_of(&self, fd: u64) -> Option<Id> {
        let meta = fs::metadata(format!("/proc/{}/fd/{fd}", self.pid)).ok()?;
        self.ids.get(&meta.ino()).copied()
    }

    fn text(&self, at: u64) -> String {
        let mut text = vec![0; 4096];
        let mut done = 0;
        // Up to the end of a page at a time: what is behind it may not be there.
        while !text[..done].contains(&0) {
            let more = 256 - (at as usize + done) % 256;
            let part = &mut text[done..done + more];
            self.memory.read_exact_at(part, at + done as u64).unwrap();
            done += more;
        }
        let end = text.iter().position(|&c| c == 0).unwrap();
        String::from_utf8(text[..end].to_vec()).unwrap()
    }

    /// Folder and name of a path, if it lies where is watched.
    fn name(&self, folder: u64, path: u64) -> Option<Name> {
        let path = self.text(path);
        let base = match folder as i32 {
            libc::AT_FDCWD => format!("/proc/{}/cwd", self.pid),
            fd => format!("/proc/{}/fd/{fd}", self.pid),
        };
        let whole = fs::read_link(base).ok()?.join(path);
        let inside = whole.strip_prefix(&self.root).ok()?;
        let name = inside.file_name()?.to_str()?.to_owned();
        let mut at = 0;
        for part in inside.parent()? {
            at = self.child(at, part)?;
        }
        Some((at, name))
    }

    fn child(&self, folder: Id, name: &OsStr) -> Option<Id> {
        match &self.nodes[folder] {
            Node::Folder(entries) => entries
                .get(std::str::from_utf8(name.as_bytes()).ok()?)
                .copied(),
            Node::File(_) => None,
        }
    }

    fn folder(&mut self, id: Id) -> &mut BTreeMap<String, Id> {
        match &mut self.nodes[id] {
            Node::Folder(entries) => entries,
            Node::File(_) => panic!("a file is no folder"),
        }
    }

    fn create(&mut self, folder: u64, path: u64, is_folder: bool) {
        let Some(at) = self.name(folder, path) else {
            return;
        };
        if self.child(at.0, OsStr::new(&at.1)).is_some() {
            return;
        }
        let path = PathBuf::from(self.text(path));
        assert!(
            path.is_absolute(),
            "a way of creating files that is not recorded"
        );
        // The number may have been that of a file that is gone.
        let inode = fs::symlink_metadata(path).unwrap().ino();
        let id = self.nodes.len();
        self.nodes.push(if is_folder {
            Node::Folder(BTreeMap::new())
        } else {
            Node::File(Vec::new())
        });
        self.ids.insert(inode, id);
        self.folder(at.0).insert(at.1.clone(), id);
        self.ops.push(Op::Create {
            at,
            id,
            folder: is_folder,
        });
    }

    fn write(&mut self, fd: u64, from: u64, bytes: usize, offset: Option<u64>) {
        let mut data = vec![0; bytes];
        self.memory.read_exact_at(&mut data, from).unwrap();
        if let Some(id) = self.id_of(fd) {
            let offset = offset.unwrap_or_else(|| {
                let info = fs::read_to_string(format!("/proc/{}/fdinfo/{fd}", self.pid)).unwrap();
                let position = info.lines().next().unwrap().rsplit('\t').next().unwrap();
                position.parse::<u64>().unwrap() - bytes as u64
            });
            self.ops.push(Op::Write { id, offset, data });
        } else if fd == 1 {
            self.line.push_str(&String::from_utf8_lossy(&data));
            while let Some((line, rest)) = self.line.split_once('\n') {
                self.ops.push(Op::Said(line.to_owned()));
                self.line = rest.to_owned();
            }
        }
    }

    fn set_len(&mut self, fd: u64, bytes: u64, grow: bool) {
        if let Some(id) = self.id_of(fd) {
            self.ops.push(Op::SetLen { id, bytes, grow });
        }
    }

    fn rename(&mut self, from: (u64, u64), to: (u64, u64), flags: u32) {
        let (Some(from), Some(to)) = (self.name(from.0, from.1), self.name(to.0, to.1)) else {
            return;
        };
        let exchange = flags & libc::RENAME_EXCHANGE != 0;
        let op = Op::Rename { from, to, exchange };
        apply(&mut self.nodes, &op);
        self.ops.push(op);
    }

    fn remove(&mut self, folder: u64, path: u64) {
        if let Some(at) = self.name(folder, path) {
            self.folder(at.0).remove(&at.1);
            self.ops.push(Op::Remove { at });
        }
    }

    fn link(&mut self, from: (u64, u64), to: (u64, u64)) {
        let (Some(from), Some(at)) = (self.name(from.0, from.1), self.name(to.0, to.1)) else {
            return;
        };
        let id = self.folder(from.0)[&from.1];
        self.folder(at.0).insert(at.1.clone(), id);
        self.ops.push(Op::Link { at, id });
    }
}

/// Does to `nodes` what was done, as far as what it concerns is there.
fn apply(nodes: &mut [Node], op: &Op) {
    let mut set = |at: &Name, id: Option<Id>| -> Option<Id> {
        let Node::Folder(entries) = &mut nodes[at.0] else {
            return None;
        };
        match id {
            Some(id) => entries.insert(at.1.clone(), id),
            None => entries.remove(&at.1),
        }
    };
    match op {
        Op::Create { at, id, .. } | Op::Link { at, id } => {
            set(at, Some(*id));
        }
        Op::Remove { at } => {
            set(at, None);
        }
        Op::Rename { from, to, exchange } => {
            if let Some(id) = set(from, None) {
                let other = set(to, Some(id));
                if *exchange {
                    set(from, other);
                }
            }
        }
        Op::Write { id, offset, data } => {
            if let Node::File(content) = &mut nodes[*id] {
                let end = *offset as usize + data.len();
                if content.len() < end {
                    content.resize(end, 0);
                }
                content[*offset as usize..end].copy_from_slice(data);
            }
        }
        Op::SetLen { id, bytes, grow } => {
            if let Node::File(content) = &mut nodes[*id] {
                let bytes = *bytes as usize;
                if !grow || content.len() < bytes {
                    content.resize(bytes, 0);
                }
            }
        }
        Op::Sync { .. } | Op::Said(_) => {}
    }
}

/// A disk that has been told to do things, of which some are certain to be there after a loss of power.
pub struct Disk<'a> {
    nodes: Vec<Node>,
    /// Done to files, and not certain yet.
    files: HashMap<Id, Vec<&'a Op>>,
    /// Done to names, and not certain yet.
    names: Vec<&'a Op>,
}

impl<'a> Disk<'a> {
    pub fn new() -> Self {
        Self {
            nodes: vec![Node::Folder(BTreeMap::new())],
            files: HashMap::new(),
            names: Vec::new(),
        }
    }

    /// The next thing is done.
    pub fn take(&mut self, op: &'a Op) {
        match op {
            Op::Create { id, folder, .. } => {
                assert_eq!(*id, self.nodes.len());
                self.nodes.push(if *folder {
                    Node::Folder(BTreeMap::new())
                } else {
                    Node::File(Vec::new())
                });
                self.names.push(op);
            }
            Op::Link { .. } | Op::Remove { .. } | Op::Rename { .. } => self.names.push(op),
            Op::Write { id, .. } | Op::SetLen { id, .. } => {
                self.files.entry(*id).or_default().push(op);
            }
            Op::Sync { id } => {
                for op in self.files.remove(id).unwrap_or_default() {
                    apply(&mut self.nodes, op);
                }
                let nodes = &mut self.nodes;
                self.names.retain(|op| {
                    let concerned = names_of(op).iter().any(|name| name.0 == *id);
                    if concerned {
                        apply(nodes, op);
                    }
                    !concerned
                });
            }
            Op::Said(_) => {}
        }
    }

    /// Puts into `dir` what a loss of power at this moment may leave.
    pub fn lose_power(&self, chance: &mut Chance, dir: &Path) {
        let mut nodes = self.nodes.clone();
        // All, nothing, or some of what is not certain.
        let luck = chance.below(4);
        let kept = |chance: &mut Chance| match luck {
            0 => false,
            1 => true,
            _ => chance.below(2) == 0,
        };
        for ops in self.files.values() {
            for op in ops {
                if !kept(chance) {
                    continue;
                }
                match op {
                    Op::Write { id, offset, data } if luck > 1 && chance.below(4) == 0 => {
                        let sectors = chance.below(data.len() as u64 / 512 + 1) as usize;
                        let torn = Op::Write {
                            id: *id,
                            offset: *offset,
                            data: data[..sectors * 512].to_vec(),
                        };
                        apply(&mut nodes, &torn);
                    }
                    op => apply(&mut nodes, op),
                }
            }
        }
        // What happens to a name happens in order, or not at all.
        let mut lost: HashSet<&Name> = HashSet::new();
        for op in &self.names {
            let names = names_of(op);
            if !kept(chance) || names.iter().any(|name| lost.contains(name)) {
                lost.extend(names);
            } else {
                apply(&mut nodes, op);
            }
        }
        put(&nodes, 0, dir);
    }
}

fn names_of(op: &Op) -> Vec<&Name> {
    match op {
        Op::Create { at, .. } | Op::Link { at, .. } | Op::Remove { at } => vec![at],
        Op::Rename { from, to, .. } => vec![from, to],
        _ => Vec::new(),
    }
}

fn put(nodes: &[Node], id: Id, at: &Path) {
    match &nodes[id] {
        Node::File(content) => fs::write(at, content).unwrap(),
        Node::Folder(entries) => {
            if !at.exists() {
                fs::create_dir(at).unwrap();
            }
            for (name, id) in entries {
                put(nodes, *id, &at.join(name));
            }
        }
    }
}
