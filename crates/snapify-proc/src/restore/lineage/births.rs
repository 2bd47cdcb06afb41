//! Into which session each process is born, and below whom the leaders of sessions are.
//!
//! A session comes down from its leader by births alone, and a process comes up to an ancestor when its parent ends. So below any
//! process there are its own session, the one that it was born into before it led its own, and those whose leaders
//! were born below it, of which some may have come up since. A process that leads a session can so have brought down
//! one other: which one is to be found, and for each session the place where its leader was born, so that together they explain
//! where all members are.

use super::{Node, Refusal};
use std::collections::{BTreeMap, HashMap, HashSet};

/// A way to get all sessions to where they have members.
#[derive(Clone, Debug, Default)]
pub(super) struct Births {
    /// By process: the session that it must be born into; none if any will do.
    pub(super) into: Vec<Option<i32>>,
    /// By session: whose child its leader is born as; the init's if none.
    pub(super) leaders: BTreeMap<i32, Option<usize>>,
}

/// Where the leader of a session may be born.
struct Place {
    below: Option<usize>,
    /// Leaders of other sessions that then must be born into this one, and bring it down.
    carriers: Vec<usize>,
}

/// So many ways are looked at before it is taken that there is none.
const MOST_STEPS: usize = 10_000;

/// Tries ways until one leads to something, as long as there are trials left. `parents` are those that processes are born to, except
/// for leaders, of which this decides.
///
/// # Errors
/// A process whose session cannot come to where it is; or the first that `attempt` fails at.
pub(super) fn find<T>(
    nodes: &[Node],
    parents: &[Option<usize>],
    trials: &mut usize,
    attempt: impl FnMut(&Births) -> Result<T, Refusal>,
) -> Result<T, Refusal> {
    let tree = Tree::new(nodes, parents);
    let into = nodes
        .iter()
        .map(|node| (!leads(node)).then_some(node.kin.session));
    let mut births = Births {
        into: into.collect(),
        leaders: BTreeMap::new(),
    };
    let mut open = Vec::new();
    for (&session, members) in &tree.members {
        let mut places = tree.places(session, members);
        match places.len() {
            0 => {
                let why = "its session is not one that its parent could have given it";
                return Err((nodes[members[0]].kin.pid, why));
            }
            1 => {
                let place = places.remove(0);
                if !births.enter(session, &place) {
                    return Err((nodes[members[0]].kin.pid, CONFLICT));
                }
            }
            _ => open.push((session, members[0], places)),
        }
    }
    open.sort_by_key(|(_, _, places)| places.len());
    let mut search = Search {
        open: &open,
        births,
        attempt,
        steps: MOST_STEPS,
        trials,
        refusal: None,
    };
    search.descend(0).ok_or_else(|| {
        let first = open.first().map_or(0, |&(_, member, _)| member);
        search.refusal.unwrap_or((nodes[first].kin.pid, CONFLICT))
    })
}

const CONFLICT: &str = "one of its ancestors would have to be born into two sessions";

pub(super) fn leads(node: &Node) -> bool {
    node.kin.session == node.kin.pid
}

impl Births {
    /// Has a leader born at a place. False, and nothing is changed, if that does not go with what others need.
    fn enter(&mut self, session: i32, place: &Place) -> bool {
        // Nobody has brought this session down yet.
        if place.carriers.iter().any(|&node| self.into[node].is_some()) {
            return false;
        }
        for &node in &place.carriers {
            self.into[node] = Some(session);
        }
        self.leaders.insert(session, place.below);
        true
    }

    fn leave(&mut self, session: i32, place: &Place) {
        for &node in &place.carriers {
            self.into[node] = None;
        }
        self.leaders.remove(&session);
    }
}

struct Search<'a, F> {
    /// Sessions whose leaders may be born at several places, with one of their members.
    open: &'a [(i32, usize, Vec<Place>)],
    births: Births,
    attempt: F,
    steps: usize,
    trials: &'a mut usize,
    refusal: Option<Refusal>,
}

impl<T, F: FnMut(&Births) -> Result<T, Refusal>> Search<'_, F> {
    /// Decides about all sessions from this one on.
    fn descend(&mut self, at: usize) -> Option<T> {
        let Some((session, _, places)) = self.open.get(at) else {
            *self.trials = self.trials.saturating_sub(1);
            return match (self.attempt)(&self.births) {
                Ok(found) => Some(found),
                Err(refusal) => {
                    self.refusal.get_or_insert(refusal);
                    None
                }
            };
        };
        for place in places {
            if self.steps == 0 || *self.trials == 0 {
                return None;
            }
            self.steps -= 1;
            if !self.births.enter(*session, place) {
                continue;
            }
            let found = self.descend(at + 1);
            if found.is_some() {
                return found;
            }
            self.births.leave(*session, place);
        }
        None
    }
}

struct Tree<'a> {
    nodes: &'a [Node],
    parents: &'a [Option<usize>],
    index: HashMap<i32, usize>,
    /// Those that do not lead it, by session.
    members: BTreeMap<i32, Vec<usize>>,
}

impl<'a> Tree<'a> {
    fn new(nodes: &'a [Node], parents: &'a [Option<usize>]) -> Self {
        let mut members: BTreeMap<i32, Vec<usize>> = BTreeMap::new();
        for (n, node) in nodes.iter().enumerate().filter(|(_, node)| !leads(node)) {
            members.entry(node.kin.session).or_default().push(n);
        }
        let index = nodes.iter().enumerate().map(|(n, node)| (node.kin.pid, n));
        Self {
            nodes,
            parents,
            index: index.collect(),
            members,
        }
    }

    /// A process and those above it.
    fn upward(&self, from: Option<usize>) -> impl Iterator<Item = usize> {
        std::iter::successors(from, |&at| self.parents[at])
    }

    /// Where the leader of a session may be born, likely places first.
    fn places(&self, session: i32, members: &[usize]) -> Vec<Place> {
        if session == 0 {
            // It is the init's.
            return self.place(session, members, None).into_iter().collect();
        }
        let leader = self.index.get(&session).copied();
        let home = leader.and_then(|leader| self.parents[leader]);
        if leader.is_some()
            && let Some(place) = self.place(session, members, home)
            && place.carriers.is_empty()
        {
            return vec![place];
        }
        // Deeper than all members it need not be.
        let mut seen = HashSet::from([home]);
        let mut found = vec![home];
        for &member in members {
            for at in self.upward(self.parents[member]) {
                if !seen.insert(Some(at)) {
                    break;
                }
                if home.is_none() || self.upward(Some(at)).any(|above| Some(above) == home) {
                    found.push(Some(at));
                }
            }
        }
        let depth = |place: &Place| self.upward(place.below).count();
        let places = found.into_iter();
        let mut places: Vec<Place> = places
            .filter_map(|below| self.place(session, members, below))
            .collect();
        let moved = |place: &Place| leader.is_some() && place.below != home;
        let cost = |place: &Place| (moved(place), place.carriers.len(), depth(place));
        places.sort_by_cached_key(cost);
        // Where a helper leads it nothing else depends on the place.
        if leader.is_none()
            && places
                .first()
                .is_some_and(|place| place.carriers.is_empty())
        {
            places.truncate(1);
        }
        places
    }

    /// Who must bring a session down to its members if its leader is born as this one's child; none if that cannot be.
    fn place(&self, session: i32, members: &[usize], below: Option<usize>) -> Option<Place> {
        let above: HashSet<usize> = self.upward(below).collect();
        // Those are there before it.
        if above
            .iter()
            .any(|&at| self.nodes[at].kin.session == session)
        {
            return None;
        }
        let mut carriers = HashSet::new();
        for &member in members {
            for at in self.upward(self.parents[member]) {
                if above.contains(&at) || self.nodes[at].kin.session == session {
                    break;
                }
                if !leads(&self.nodes[at]) {
                    return None;
                }
                if !carriers.insert(at) {
                    break;
                }
            }
        }
        let mut carriers: Vec<usize> = carriers.into_iter().collect();
        carriers.sort_unstable();
        Some(Place { below, carriers })
    }
}
