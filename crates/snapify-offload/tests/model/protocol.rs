//! Rings, gates, marker and agents of one host process and its offload process.
//!
//! What is in the model as it is in the code: the counts of a ring, records that are written over, answers that must make room, the gates around sending and publishing, the lifecycle lock, the marker, the
//! captures of offload process with store and of host process at different moments, a restart from both. What is left out: the daemon, which
//! hands on one request at a time, and how who waits is woken, which is `wake`'s.

use stateright::{Checker, Model, Property};

/// Records that a ring has room for.
const ROOM: u8 = 2;
/// The command ring, and one pipeline that all threads share.
const RINGS: usize = 2;
const COMMANDS: usize = 0;
const PIPELINE: usize = 1;
/// Tag of the marker.
const MARKER: u8 = 0xff;
/// A slot that nothing was written to.
const EMPTY: u8 = 0xee;
/// Pieces of a transfer.
const PIECES: u8 = 2;

/// What a thread of the host process does, one after the other.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Operation {
    /// A run function.
    Run,
    /// A command.
    Command,
    /// A one-sided transfer.
    Transfer,
    /// A pipeline is made: a command within the critical region of the lifecycle.
    Create,
}

/// Who holds the lifecycle lock.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Lock {
    Free,
    Thread(usize),
    Agent,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Thread {
    Begin,
    /// At the gate, to send a request or copy a piece.
    AtGate,
    InGate,
    /// The request is in the ring.
    Sent(u8),
    /// Until the count has come to this number.
    Await(u8, Why),
}

/// What a thread waits for.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Why {
    Answer,
    Room,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Host {
    threads: Vec<(Thread, u8)>,
    /// Pieces that each thread has copied of its transfer.
    pieces: Vec<u8>,
    gate_closed: bool,
    inside: u8,
    lock: Lock,
    /// Sequence number of the last request in each ring.
    last: [u8; RINGS],
    /// Requests whose answers threads will ask for: ring and sequence number.
    wanted: Vec<(usize, u8)>,
    /// Answers that had to make room: ring, sequence number, tag.
    kept: Vec<(usize, u8, u8)>,
    /// An answer was not that to the request.
    wrong: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Server {
    /// Until there is a request.
    Look,
    Busy(u8),
    /// At the gate with a result.
    Executed(u8),
    InGate(u8),
    /// The answer is in the ring.
    Published,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Sink {
    servers: [(Server, u8); RINGS],
    gate_closed: bool,
    inside: u8,
    /// Tags of what was executed, in order.
    executed: Vec<u8>,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Ring {
    submitted: u8,
    completed: u8,
    /// Requests, and answers written over them.
    slots: [u8; ROOM as usize],
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Store {
    rings: [Ring; RINGS],
    /// What transfers have written, a count for each thread.
    buffers: Vec<u8>,
}

/// The agent of the host process, with what it has others do.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Agent {
    Idle,
    CloseGate,
    AwaitInside,
    SendMarker,
    AwaitMarker(u8),
    /// There was no room for a marker.
    AwaitIdle,
    CloseSinkGate,
    AwaitSinkInside,
    Paused,
    OpenSinkGate,
    OpenGate,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct State {
    host: Host,
    sink: Sink,
    store: Store,
    agent: Agent,
    pauses: u8,
    /// What was saved of the offload process and its store.
    saved_sink: Option<Box<(Sink, Store)>>,
    saved_host: Option<Box<Host>>,
    restarted: bool,
}

/// What is left out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Fault {
    None,
    /// Results are published in spite of a pause.
    NoSinkGate,
    /// Pieces are copied in spite of a pause.
    NoTransferGate,
    /// The pause does not wait for those who are inside the gate.
    NoAwaitInside,
    /// No marker is sent.
    NoMarker,
    /// The offload process's gate is closed before the marker is sent.
    SinkGateFirst,
}

struct Protocol {
    scripts: Vec<Vec<Operation>>,
    pauses: u8,
    fault: Fault,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Step {
    Thread(usize),
    Server(usize),
    Agent,
    SaveSink,
    SaveHost,
    Restart,
}

fn tag(thread: usize, operation: u8) -> u8 {
    thread as u8 * 16 + operation
}

fn slot(sequence: u8) -> usize {
    usize::from(sequence % ROOM)
}

impl State {
    fn operation(&self, model: &Protocol, who: usize) -> Option<Operation> {
        let done = self.host.threads[who].1;
        model.scripts[who].get(usize::from(done)).copied()
    }

    fn ring_of(operation: Operation) -> usize {
        match operation {
            Operation::Run => PIPELINE,
            _ => COMMANDS,
        }
    }

    fn may_step(&self, model: &Protocol, who: usize) -> bool {
        let Some(operation) = self.operation(model, who) else {
            return false;
        };
        match self.host.threads[who].0 {
            Thread::Begin => operation != Operation::Create || self.host.lock == Lock::Free,
            Thread::AtGate => {
                let free = operation == Operation::Transfer && model.fault == Fault::NoTransferGate;
                !self.host.gate_closed || free
            }
            Thread::Await(until, _) => {
                self.store.rings[Self::ring_of(operation)].completed >= until
            }
            _ => true,
        }
    }

    /// A record is written and counted. None if there is no room.
    fn submit(&mut self, index: usize, tag: u8) -> Option<u8> {
        let ring = &mut self.store.rings[index];
        let last = &mut self.host.last[index];
        if *last - ring.completed >= ROOM {
            return None;
        }
        // Answers that nobody has taken yet make room.
        let old = (*last + 1).wrapping_sub(ROOM);
        if self.host.wanted.contains(&(index, old)) {
            self.host.kept.push((index, old, ring.slots[slot(old)]));
        }
        *last += 1;
        ring.slots[slot(*last)] = tag;
        ring.submitted += 1;
        Some(*last)
    }

    /// The count has come to where a thread waited for it.
    fn reached(&mut self, who: usize, operation: Operation, sequence: u8, why: Why) {
        if why == Why::Room {
            self.host.threads[who].0 = Thread::AtGate;
            return;
        }
        let index = Self::ring_of(operation);
        self.host
            .wanted
            .retain(|wanted| *wanted != (index, sequence));
        let kept = &mut self.host.kept;
        let found = kept
            .iter()
            .position(|(r, s, _)| (*r, *s) == (index, sequence));
        let answer = match found {
            Some(at) => kept.remove(at).2,
            None => self.store.rings[index].slots[slot(sequence)],
        };
        let done = self.host.threads[who].1;
        self.host.wrong |= answer != tag(who, done) | 0x80;
        if self.host.lock == Lock::Thread(who) {
            self.host.lock = Lock::Free;
        }
        self.host.threads[who] = (Thread::Begin, done + 1);
    }

    fn step_thread(&mut self, model: &Protocol, who: usize) {
        let Some(operation) = self.operation(model, who) else {
            return;
        };
        let index = Self::ring_of(operation);
        let (at, done) = self.host.threads[who];
        let next = match at {
            Thread::Begin => {
                if operation == Operation::Create {
                    self.host.lock = Lock::Thread(who);
                }
                Thread::AtGate
            }
            Thread::AtGate => {
                self.host.inside += 1;
                Thread::InGate
            }
            Thread::InGate if operation == Operation::Transfer => {
                self.store.buffers[who] += 1;
                self.host.pieces[who] += 1;
                self.host.inside -= 1;
                if self.host.pieces[who] == PIECES {
                    self.host.pieces[who] = 0;
                    self.host.threads[who].1 = done + 1;
                    Thread::Begin
                } else {
                    Thread::AtGate
                }
            }
            Thread::InGate => match self.submit(index, tag(who, done)) {
                Some(sequence) => {
                    self.host.wanted.push((index, sequence));
                    Thread::Sent(sequence)
                }
                None => {
                    self.host.inside -= 1;
                    // Until the oldest request is answered.
                    Thread::Await(self.store.rings[index].completed + 1, Why::Room)
                }
            },
            Thread::Sent(sequence) => {
                self.host.inside -= 1;
                Thread::Await(sequence, Why::Answer)
            }
            Thread::Await(until, why) => return self.reached(who, operation, until, why),
        };
        self.host.threads[who].0 = next;
    }

    fn server_may_step(&self, model: &Protocol, index: usize) -> bool {
        match self.sink.servers[index].0 {
            Server::Look => self.store.rings[index].submitted > self.sink.servers[index].1,
            Server::Executed(_) => !self.sink.gate_closed || model.fault == Fault::NoSinkGate,
            _ => true,
        }
    }

    fn step_server(&mut self, index: usize) {
        let (at, served) = self.sink.servers[index];
        let ring = &mut self.store.rings[index];
        let next = match at {
            Server::Look => Server::Busy(ring.slots[slot(served + 1)]),
            Server::Busy(tag) => {
                if tag != MARKER {
                    self.sink.executed.push(tag);
                }
                Server::Executed(tag)
            }
            Server::Executed(tag) => {
                self.sink.inside += 1;
                Server::InGate(tag)
            }
            Server::InGate(tag) => {
                ring.slots[slot(served + 1)] = tag | 0x80;
                ring.completed += 1;
                self.sink.servers[index].1 = served + 1;
                Server::Published
            }
            Server::Published => {
                self.sink.inside -= 1;
                Server::Look
            }
        };
        self.sink.servers[index].0 = next;
    }

    fn agent_may_step(&self, model: &Protocol) -> bool {
        match self.agent {
            Agent::Idle => self.pauses > 0 && self.host.lock == Lock::Free,
            Agent::AwaitInside => self.host.inside == 0 || model.fault == Fault::NoAwaitInside,
            Agent::AwaitIdle => self.host.last[COMMANDS] == self.store.rings[COMMANDS].completed,
            Agent::AwaitMarker(sequence) => self.store.rings[COMMANDS].completed >= sequence,
            Agent::AwaitSinkInside => self.sink.inside == 0,
            _ => true,
        }
    }

    fn step_agent(&mut self, model: &Protocol) {
        self.agent = match self.agent {
            Agent::Idle => {
                self.pauses -= 1;
                self.host.lock = Lock::Agent;
                Agent::CloseGate
            }
            Agent::CloseGate => {
                self.host.gate_closed = true;
                self.sink.gate_closed |= model.fault == Fault::SinkGateFirst;
                Agent::AwaitInside
            }
            Agent::AwaitInside if model.fault == Fault::NoMarker => Agent::CloseSinkGate,
            Agent::AwaitInside => Agent::SendMarker,
            Agent::SendMarker => match self.submit(COMMANDS, MARKER) {
                Some(sequence) => Agent::AwaitMarker(sequence),
                None => Agent::AwaitIdle,
            },
            Agent::AwaitMarker(_) | Agent::AwaitIdle => Agent::CloseSinkGate,
            Agent::CloseSinkGate => {
                self.sink.gate_closed = true;
                Agent::AwaitSinkInside
            }
            Agent::AwaitSinkInside => Agent::Paused,
            Agent::Paused => {
                // A snapshot is of one pause, or it is none.
                if self.saved_sink.is_none() || self.saved_host.is_none() {
                    (self.saved_sink, self.saved_host) = (None, None);
                }
                Agent::OpenSinkGate
            }
            Agent::OpenSinkGate => {
                self.sink.gate_closed = false;
                Agent::OpenGate
            }
            Agent::OpenGate => {
                self.host.gate_closed = false;
                self.host.lock = Lock::Free;
                Agent::Idle
            }
        };
    }

    /// Both are rebuilt from what was saved.
    fn restart(&mut self) {
        let (Some(saved), Some(host)) = (self.saved_sink.take(), self.saved_host.take()) else {
            return;
        };
        (self.sink, self.store) = *saved;
        self.host = *host;
        self.agent = Agent::Paused;
        self.restarted = true;
    }

    fn all_done(&self, model: &Protocol) -> bool {
        let executed = |operation: &Operation| *operation != Operation::Transfer;
        let all = model.scripts.iter().enumerate().all(|(who, script)| {
            let times =
                |wanted: fn(&Operation) -> bool| script.iter().filter(|o| wanted(o)).count();
            let transfers = times(|operation| *operation == Operation::Transfer);
            let ran = self
                .sink
                .executed
                .iter()
                .filter(|tag| usize::from(**tag / 16) == who);
            usize::from(self.host.threads[who].1) == script.len()
                && usize::from(self.store.buffers[who]) == transfers * usize::from(PIECES)
                && ran.count() == times(executed)
        });
        all && self.agent == Agent::Idle && self.pauses == 0
    }
}

impl Model for Protocol {
    type State = State;
    type Action = Step;

    fn init_states(&self) -> Vec<State> {
        let threads = self.scripts.len();
        let ring = Ring {
            submitted: 0,
            completed: 0,
            slots: [EMPTY; ROOM as usize],
        };
        vec![State {
            host: Host {
                threads: vec![(Thread::Begin, 0); threads],
                pieces: vec![0; threads],
                gate_closed: false,
                inside: 0,
                lock: Lock::Free,
                last: [0; RINGS],
                wanted: Vec::new(),
                kept: Vec::new(),
                wrong: false,
            },
            sink: Sink {
                servers: [(Server::Look, 0); RINGS],
                gate_closed: false,
                inside: 0,
                executed: Vec::new(),
            },
            store: Store {
                rings: [ring; RINGS],
                buffers: vec![0; threads],
            },
            agent: Agent::Idle,
            pauses: self.pauses,
            saved_sink: None,
            saved_host: None,
            restarted: false,
        }]
    }

    fn actions(&self, state: &State, steps: &mut Vec<Step>) {
        steps.extend(
            (0..self.scripts.len())
                .filter(|who| state.may_step(self, *who))
                .map(Step::Thread),
        );
        steps.extend(
            (0..RINGS)
                .filter(|ring| state.server_may_step(self, *ring))
                .map(Step::Server),
        );
        if state.agent_may_step(self) {
            steps.push(Step::Agent);
        }
        if state.agent == Agent::Paused && !state.restarted {
            if state.saved_sink.is_none() {
                steps.push(Step::SaveSink);
            }
            if state.saved_host.is_none() {
                steps.push(Step::SaveHost);
            }
        }
        // The original may have gone on before it crashes.
        if state.saved_sink.is_some() && state.saved_host.is_some() {
            steps.push(Step::Restart);
        }
    }

    fn next_state(&self, last: &State, step: Step) -> Option<State> {
        let mut state = last.clone();
        match step {
            Step::Thread(who) => state.step_thread(self, who),
            Step::Server(index) => state.step_server(index),
            Step::Agent => state.step_agent(self),
            Step::SaveSink => {
                state.saved_sink = Some(Box::new((state.sink.clone(), state.store.clone())))
            }
            Step::SaveHost => state.saved_host = Some(Box::new(state.host.clone())),
            Step::Restart => state.restart(),
        }
        (state != *last).then_some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("nothing is doubled or reordered", |_, state: &State| {
                let executed = &state.sink.executed;
                executed.iter().enumerate().all(|(at, tag)| {
                    // Of each thread everything before it came before it.
                    executed[..at]
                        .iter()
                        .all(|other| other / 16 != tag / 16 || other < tag)
                })
            }),
            Property::always("answers are those to the requests", |_, state: &State| {
                !state.host.wrong
            }),
            Property::always(
                "nobody sends or publishes in a pause",
                |_, state: &State| {
                    state.agent != Agent::Paused || (state.host.inside, state.sink.inside) == (0, 0)
                },
            ),
            Property::always("no command is under way in a pause", |_, state: &State| {
                let ring = &state.store.rings[COMMANDS];
                state.agent != Agent::Paused || ring.submitted == ring.completed
            }),
            Property::eventually("all is done, pauses too", |model: &Self, state: &State| {
                state.all_done(model)
            }),
            Property::sometimes("a function runs through a pause", |_, state: &State| {
                state.agent == Agent::Paused
                    && matches!(
                        state.sink.servers[PIPELINE].0,
                        Server::Busy(_) | Server::Executed(_)
                    )
            }),
            Property::sometimes("it is restarted", |_, state: &State| state.restarted),
        ]
    }
}

use Operation::{Command, Create, Run, Transfer};

fn check(scripts: &[&[Operation]], pauses: u8) {
    let scripts = scripts.iter().map(|script| script.to_vec()).collect();
    let fault = Fault::None;
    let model = Protocol {
        scripts,
        pauses,
        fault,
    };
    let checker = model.checker().threads(2).spawn_dfs().join();
    checker.assert_properties();
    eprintln!("{} states", checker.unique_state_count());
}

#[test]
fn functions_and_transfers() {
    check(&[&[Run, Transfer], &[Transfer, Run]], 1);
}

#[test]
fn functions_that_share_a_full_pipeline() {
    check(&[&[Run], &[Run], &[Run]], 1);
}

#[test]
fn commands_and_creations() {
    check(&[&[Create, Run], &[Command, Command]], 1);
}

#[test]
fn two_pauses() {
    check(&[&[Run, Command], &[Transfer]], 2);
}

#[test]
fn each_step_of_the_drain_is_needed() {
    let needed = [
        (Fault::SinkGateFirst, "all is done, pauses too"),
        (Fault::NoSinkGate, "nobody sends or publishes in a pause"),
        (
            Fault::NoTransferGate,
            "nobody sends or publishes in a pause",
        ),
        (Fault::NoAwaitInside, "nobody sends or publishes in a pause"),
        (Fault::NoMarker, "no command is under way in a pause"),
    ];
    for (fault, property) in needed {
        let model = Protocol {
            scripts: vec![vec![Run, Transfer], vec![Command]],
            pauses: 1,
            fault,
        };
        let checker = model.checker().spawn_dfs().join();
        assert!(
            checker.discovery(property).is_some(),
            "{fault:?}: {property}"
        );
    }
}
