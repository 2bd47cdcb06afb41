//! One gate (`snapify_fabric::gate`), atomic operation by atomic operation.

use stateright::{Checker, Model, Property};

const CLOSED: u8 = 0x80;

/// Where a thread that passes the gate stands.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Passer {
    /// About to count itself in.
    Enter,
    /// It has seen the gate closed, and counts itself out.
    Refused,
    /// About to wake those who wait.
    WakeRefused,
    /// About to look at the word.
    Look,
    /// About to sleep unless the word has changed.
    Wait(u8),
    Asleep,
    Inside,
    /// About to wake those who wait, after having left.
    WakeLeft,
}

/// Where the thread that closes and opens the gate stands.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Closer {
    Close,
    Check(u8),
    Wait(u8),
    Asleep,
    Look,
    /// `close` has returned.
    Closed,
    /// The word is open again; about to wake those who wait.
    WakeOpened,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct State {
    word: u8,
    passers: [(Passer, u8); 3],
    closer: (Closer, u8),
}

/// What is left out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Fault {
    None,
    /// Who leaves last does not wake the closer.
    NoWakeByLast,
    /// Opening wakes nobody.
    NoWakeByOpen,
    /// The closer does not wait.
    NoWait,
}

struct Gate(Fault);

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Step {
    Passer(usize),
    Closer,
}

impl State {
    fn wake_all(&mut self) {
        for (passer, _) in &mut self.passers {
            if *passer == Passer::Asleep {
                *passer = Passer::Look;
            }
        }
        if self.closer.0 == Closer::Asleep {
            self.closer.0 = Closer::Look;
        }
    }

    fn leave(&mut self) -> bool {
        self.word -= 1;
        self.word == CLOSED
    }

    fn pass(&mut self, who: usize, fault: Fault) {
        let (at, left) = self.passers[who];
        let next = match at {
            Passer::Enter => {
                let seen = self.word;
                self.word += 1;
                if seen & CLOSED == 0 {
                    Passer::Inside
                } else {
                    Passer::Refused
                }
            }
            Passer::Refused if self.leave() && fault != Fault::NoWakeByLast => Passer::WakeRefused,
            Passer::Refused => Passer::Look,
            Passer::WakeRefused => {
                self.wake_all();
                Passer::Look
            }
            Passer::Look if self.word & CLOSED == 0 => Passer::Enter,
            Passer::Look => Passer::Wait(self.word),
            Passer::Wait(seen) if seen == self.word => Passer::Asleep,
            Passer::Wait(_) => Passer::Look,
            Passer::Asleep => unreachable!(),
            Passer::Inside => {
                let wake = self.leave() && fault != Fault::NoWakeByLast;
                self.passers[who].1 = left - 1;
                if wake {
                    Passer::WakeLeft
                } else {
                    Passer::Enter
                }
            }
            Passer::WakeLeft => {
                self.wake_all();
                Passer::Enter
            }
        };
        self.passers[who].0 = next;
    }

    fn close(&mut self, fault: Fault) {
        self.closer.0 = match self.closer.0 {
            Closer::Close => {
                self.word |= CLOSED;
                Closer::Check(self.word)
            }
            Closer::Check(seen) if seen == CLOSED || fault == Fault::NoWait => Closer::Closed,
            Closer::Check(seen) => Closer::Wait(seen),
            Closer::Wait(seen) if seen == self.word => Closer::Asleep,
            Closer::Wait(_) => Closer::Look,
            Closer::Asleep => unreachable!(),
            Closer::Look => Closer::Check(self.word),
            Closer::Closed => {
                self.word &= !CLOSED;
                Closer::WakeOpened
            }
            Closer::WakeOpened => {
                if fault != Fault::NoWakeByOpen {
                    self.wake_all();
                }
                self.closer.1 -= 1;
                Closer::Close
            }
        };
    }

    fn passer_is_done(&self, who: usize) -> bool {
        self.passers[who] == (Passer::Enter, 0)
    }

    fn closer_is_done(&self) -> bool {
        self.closer == (Closer::Close, 0)
    }
}

impl Model for Gate {
    type State = State;
    type Action = Step;

    fn init_states(&self) -> Vec<State> {
        vec![State {
            word: 0,
            passers: [(Passer::Enter, 2), (Passer::Enter, 2), (Passer::Enter, 1)],
            closer: (Closer::Close, 2),
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Step>) {
        for who in 0..state.passers.len() {
            if !state.passer_is_done(who) && state.passers[who].0 != Passer::Asleep {
                actions.push(Step::Passer(who));
            }
        }
        if !state.closer_is_done() && state.closer.0 != Closer::Asleep {
            actions.push(Step::Closer);
        }
    }

    fn next_state(&self, last: &State, step: Step) -> Option<State> {
        let mut state = last.clone();
        match step {
            Step::Passer(who) => state.pass(who, self.0),
            Step::Closer => state.close(self.0),
        }
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("nobody is inside while it is closed", |_, state: &State| {
                let inside = state.passers.iter().any(|(at, _)| *at == Passer::Inside);
                state.closer.0 != Closer::Closed || !inside
            }),
            Property::eventually("closing, opening and passing end", |_, state: &State| {
                state.closer_is_done()
                    && (0..state.passers.len()).all(|who| state.passer_is_done(who))
            }),
            Property::sometimes("somebody is refused", |_, state: &State| {
                state.passers.iter().any(|(at, _)| *at == Passer::Refused)
            }),
            Property::sometimes("the closer sleeps", |_, state: &State| {
                state.closer.0 == Closer::Asleep
            }),
        ]
    }
}

#[test]
fn a_gate_keeps_out_and_lets_in() {
    let checker = Gate(Fault::None).checker().threads(2).spawn_dfs().join();
    checker.assert_properties();
    eprintln!("{} states", checker.unique_state_count());
}

#[test]
fn each_step_of_a_gate_is_needed() {
    let needed = [
        (Fault::NoWakeByLast, "closing, opening and passing end"),
        (Fault::NoWakeByOpen, "closing, opening and passing end"),
        (Fault::NoWait, "nobody is inside while it is closed"),
    ];
    for (fault, property) in needed {
        let checker = Gate(fault).checker().spawn_dfs().join();
        assert!(
            checker.discovery(property).is_some(),
            "{fault:?}: {property}"
        );
    }
}
