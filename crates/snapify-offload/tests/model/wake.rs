//! Sleeping and waking on one of the count words of a ring (`snapify_fabric::ring`), atomic operation by atomic
//! operation, with a pause in which both sides are saved, one after the other, and a restart from that.

use stateright::{Checker, Model, Property};

/// The counting side: one at a time, in order.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Counter {
    Count,
    /// It has counted up while somebody slept.
    Clear,
    Wake,
    /// With a flag beside the word: about to look at it.
    LookAtFlag,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Waiter {
    Look,
    /// About to say that it goes to sleep.
    Announce,
    /// Has said so; with a flag beside the word, about to look once more.
    LookAgain,
    /// About to sleep unless the word has changed.
    Sleep(Word),
    Asleep(Word),
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Word {
    count: u8,
    sleeper: bool,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct State {
    word: Word,
    counter: (Counter, u8),
    /// Where each stands, and how many of its waits are over.
    waiters: [(Waiter, u8); 2],
    pause: Pause,
    saved_word: Option<(Word, (Counter, u8))>,
    saved_waiters: Option<[(Waiter, u8); 2]>,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Pause {
    Before,
    During,
    After,
    Restarted,
}

/// How sleepers are announced.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Design {
    /// By a bit of the word.
    Bit,
    /// By a flag beside the word, which who counts up clears.
    FlagBeside,
    /// By a bit of the word that is not part of what is slept on.
    BitNotComparedWith,
}

struct Wake(Design);

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Step {
    Counter,
    Waiter(usize),
    Pause,
    SaveWord,
    SaveWaiters,
    Resume,
    Restart,
}

/// How far is counted.
const COUNTS: u8 = 3;
/// What each waiter waits for, one after the other.
const TARGETS: [[u8; 2]; 2] = [[1, 3], [2, 3]];

impl Wake {
    fn sleeps_on(&self, slept_on: Word, word: Word) -> bool {
        match self.0 {
            Design::Bit => slept_on == word,
            Design::FlagBeside | Design::BitNotComparedWith => slept_on.count == word.count,
        }
    }

    fn step_counter(&self, state: &mut State) {
        let (at, counted) = state.counter;
        let next = match at {
            Counter::Count => {
                let slept = state.word.sleeper;
                state.word.count += 1;
                state.counter.1 = counted + 1;
                match self.0 {
                    Design::FlagBeside => Counter::LookAtFlag,
                    _ if slept => Counter::Clear,
                    _ => Counter::Count,
                }
            }
            Counter::LookAtFlag if state.word.sleeper => Counter::Clear,
            Counter::LookAtFlag => Counter::Count,
            Counter::Clear => {
                state.word.sleeper = false;
                Counter::Wake
            }
            Counter::Wake => {
                for (waiter, _) in &mut state.waiters {
                    if matches!(waiter, Waiter::Asleep(_)) {
                        *waiter = Waiter::Look;
                    }
                }
                Counter::Count
            }
        };
        state.counter.0 = next;
    }

    fn step_waiter(&self, state: &mut State, who: usize) {
        let (at, done) = state.waiters[who];
        let target = TARGETS[who][usize::from(done)];
        let over = state.word.count >= target;
        let next = match at {
            Waiter::Look if over => {
                state.waiters[who].1 = done + 1;
                Waiter::Look
            }
            Waiter::Look => Waiter::Announce,
            Waiter::Announce => {
                state.word.sleeper = true;
                match self.0 {
                    // Setting the bit gives the word as well.
                    _ if over && self.0 != Design::FlagBeside => Waiter::Look,
                    Design::FlagBeside => Waiter::LookAgain,
                    _ => Waiter::Sleep(state.word),
                }
            }
            Waiter::LookAgain if over => Waiter::Look,
            Waiter::LookAgain => Waiter::Sleep(state.word),
            Waiter::Sleep(seen) if self.sleeps_on(seen, state.word) => Waiter::Asleep(seen),
            Waiter::Sleep(_) => Waiter::Look,
            Waiter::Asleep(_) => unreachable!("who sleeps takes no step"),
        };
        state.waiters[who].0 = next;
    }

    fn restart(&self, state: &mut State) {
        let (Some((word, counter)), Some(waiters)) = (state.saved_word, state.saved_waiters) else {
            return;
        };
        (state.word, state.counter, state.waiters) = (word, counter, waiters);
        state.pause = Pause::Restarted;
        // The system calls in which they sleep begin again.
        for (waiter, _) in &mut state.waiters {
            if let Waiter::Asleep(seen) = *waiter {
                *waiter = Waiter::Sleep(seen);
            }
        }
    }
}

impl Model for Wake {
    type State = State;
    type Action = Step;

    fn init_states(&self) -> Vec<State> {
        vec![State {
            word: Word {
                count: 0,
                sleeper: false,
            },
            counter: (Counter::Count, 0),
            waiters: [(Waiter::Look, 0); 2],
            pause: Pause::Before,
            saved_word: None,
            saved_waiters: None,
        }]
    }

    fn actions(&self, state: &State, steps: &mut Vec<Step>) {
        let between = state.counter.0 == Counter::Count;
        // In a pause nothing is published.
        if (state.counter.1 < COUNTS || !between) && state.pause != Pause::During {
            steps.push(Step::Counter);
        }
        for who in 0..state.waiters.len() {
            let (at, done) = state.waiters[who];
            if done < 2 && !matches!(at, Waiter::Asleep(_)) {
                steps.push(Step::Waiter(who));
            }
        }
        match state.pause {
            Pause::Before if between => steps.push(Step::Pause),
            Pause::During => {
                if state.saved_word.is_none() {
                    steps.push(Step::SaveWord);
                }
                if state.saved_waiters.is_none() {
                    steps.push(Step::SaveWaiters);
                }
                steps.push(Step::Resume);
            }
            _ => {}
        }
        if state.saved_word.is_some()
            && state.saved_waiters.is_some()
            && state.pause != Pause::Restarted
        {
            steps.push(Step::Restart);
        }
    }

    fn next_state(&self, last: &State, step: Step) -> Option<State> {
        let mut state = last.clone();
        match step {
            Step::Counter => self.step_counter(&mut state),
            Step::Waiter(who) => self.step_waiter(&mut state, who),
            Step::Pause => state.pause = Pause::During,
            Step::SaveWord => state.saved_word = Some((state.word, state.counter)),
            Step::SaveWaiters => state.saved_waiters = Some(state.waiters),
            Step::Resume => state.pause = Pause::After,
            Step::Restart => self.restart(&mut state),
        }
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::eventually("every wait ends", |_, state: &State| {
                state.waiters.iter().all(|(_, done)| *done == 2)
            }),
            Property::sometimes("both sleep", |_, state: &State| {
                let sleeps = |(at, _): &(Waiter, u8)| matches!(at, Waiter::Asleep(_));
                state.waiters.iter().all(sleeps)
            }),
            Property::sometimes("it is restarted without the bit", |_, state: &State| {
                state.pause == Pause::Restarted
                    && !state.word.sleeper
                    && matches!(state.waiters[0].0, Waiter::Sleep(seen) if seen.sleeper)
            }),
        ]
    }
}

#[test]
fn nobody_sleeps_for_ever() {
    let checker = Wake(Design::Bit).checker().threads(2).spawn_dfs().join();
    checker.assert_properties();
    eprintln!("{} states", checker.unique_state_count());
}

#[test]
fn the_bit_must_be_part_of_what_is_slept_on() {
    for design in [Design::FlagBeside, Design::BitNotComparedWith] {
        let checker = Wake(design).checker().spawn_dfs().join();
        let found = checker.discovery("every wait ends");
        assert!(found.is_some(), "{design:?}");
    }
}
