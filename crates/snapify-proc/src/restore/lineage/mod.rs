//! In which order processes are made, and by whom, so that each has its parent, session and process group in the end.
//!
//! A child is born into the session of whoever makes it, and can leave it only to lead a session of its own (setsid(2)).
//! So a child that is to stay in a session is made by a process of that session: by its parent before that leads another,
//! by a sibling (`CLONE_PARENT`), or by a helper anywhere below its parent that ends at once, whereupon the child passes to
//! its parent, which is a subreaper at that moment (`PR_SET_CHILD_SUBREAPER`), or to the init as orphans do.
//! Leaders of sessions and groups that have ended are helpers too: their ids stay taken as long as the session or group has members.
//!
//! `births` finds out which sessions leaders were born into, and where; `moves` which other processes were born elsewhere, if need be;
//! `lending` what processes pass on that they do not share themselves.

mod births;
mod lending;
mod moves;
#[cfg(test)]
mod tests;

use crate::image::{Kin, Shares};
use births::{Births, leads};
use std::collections::{HashMap, HashSet};

/// A process to be made. The helpers follow those of the image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Node {
    pub(crate) kin: Kin,
    pub(crate) shares: Shares,
}

/// What is done with the process at this index; in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// It is made by another one, or by the init; as that one's sibling if so.
    Make {
        node: usize,
        by: Option<usize>,
        sibling: bool,
    },
    /// It becomes the leader of a session.
    LeadSession(usize),
    /// It gets its own of what it shared only to pass it on: `CLONE_FILES`, `CLONE_FS`.
    Unshare { node: usize, flags: i32 },
    /// It joins the group with this id, which may be its own.
    JoinGroup(usize, i32),
    /// It ends, and whoever is its parent by then takes note. Its children, if it has any, pass to one of its ancestors,
    /// or to the init.
    End { node: usize, heir: Option<usize> },
}

/// The way to make all processes.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Lineage {
    pub(crate) nodes: Vec<Node>,
    pub(crate) steps: Vec<Step>,
}

/// A process that cannot be made: its id, and why.
pub(crate) type Refusal = (i32, &'static str);

/// Finds the way for these processes, which come after their parents.
///
/// # Errors
/// A process that cannot be made.
pub(crate) fn plan(nodes: &[Node]) -> Result<Lineage, Refusal> {
    let index: HashMap<i32, usize> = nodes
        .iter()
        .enumerate()
        .map(|(n, node)| (node.kin.pid, n))
        .collect();
    let parents: Vec<Option<usize>> = nodes
        .iter()
        .map(|node| index.get(&node.kin.parent).copied())
        .collect();
    let (nodes, lent) = lending::lend(nodes, &parents, &index);
    moves::find(&nodes, &parents, |places, trials| {
        births::find(&nodes, places, trials, |births| {
            let mut planner = Planner::new(&nodes, &parents, places, index.clone(), births);
            planner.make_children(None)?;
            planner.make_deferred()?;
            let unshare = lent
                .iter()
                .map(|(&node, &flags)| Step::Unshare { node, flags });
            planner.steps.extend(unshare);
            planner.form_groups();
            planner.end_temporary();
            Ok(Lineage {
                nodes: planner.nodes,
                steps: planner.steps,
            })
        })
    })
}

struct Planner {
    nodes: Vec<Node>,
    index: HashMap<i32, usize>,
    /// Whose child each process is to be when it has been made; the init's if none.
    place: Vec<Option<usize>>,
    /// The session that each process must be born into; none if any will do.
    into: Vec<Option<i32>>,
    /// By place.
    children: HashMap<Option<usize>, Vec<usize>>,
    /// The present session of each process that is there.
    session: Vec<Option<i32>>,
    /// The present parent of each process that is there.
    parent: Vec<Option<usize>>,
    steps: Vec<Step>,
    /// Those that cannot be made yet.
    deferred: Vec<usize>,
    /// Helpers that end when all is done, and to whom their children then pass.
    temporary: Vec<(usize, Option<usize>)>,
}

impl Planner {
    /// Nothing has been made. Helpers are added for the leaders of sessions that have ended, and as parents of those that are born
    /// further down than they are in the end.
    fn new(
        nodes: &[Node],
        parents: &[Option<usize>],
        places: &[Option<usize>],
        index: HashMap<i32, usize>,
        births: &Births,
    ) -> Self {
        let mut planner = Self {
            nodes: nodes.to_vec(),
            index,
            place: places.to_vec(),
            into: births.into.clone(),
            children: HashMap::new(),
            session: vec![None; nodes.len()],
            parent: vec![None; nodes.len()],
            steps: Vec::new(),
            deferred: Vec::new(),
            temporary: Vec::new(),
        };
        for (&session, &below) in &births.leaders {
            match planner.index.get(&session).copied() {
                Some(leader) => planner.place[leader] = below,
                None if session != 0 => {
                    let helper = planner.add_helper(session, below, session);
                    planner.temporary.push((helper, below));
                }
                None => {}
            }
        }
        for (node, &parent) in parents.iter().enumerate() {
            if planner.place[node] != parent {
                let helper = planner.add_helper(planner.free_id(), planner.place[node], 0);
                planner.into[helper] = births.into[node];
                planner.place[node] = Some(helper);
                planner.temporary.push((helper, parent));
            }
        }
        for (node, &place) in planner.place.iter().enumerate() {
            planner.children.entry(place).or_default().push(node);
        }
        planner
    }

    fn present(&self, maker: Option<usize>) -> Option<i32> {
        maker.map_or(Some(0), |node| self.session[node])
    }

    fn make(&mut self, node: usize, by: Option<usize>, sibling: bool) {
        self.steps.push(Step::Make { node, by, sibling });
        self.session[node] = self.present(by);
        self.parent[node] = match by {
            Some(by) if sibling => self.parent[by],
            _ => by,
        };
    }

    /// Makes the children of a process that has been made, as far as they can be made yet.
    fn make_children(&mut self, parent: Option<usize>) -> Result<(), Refusal> {
        let mut children = self.children.get(&parent).cloned().unwrap_or_default();
        if let Some(node) = parent.filter(|&node| leads(&self.nodes[node])) {
            // What it can give its children only as long as it leads no session.
            let born_in = self.present(parent);
            let early = |&child: &usize| self.into[child].is_some() && self.into[child] == born_in;
            let (early, later): (Vec<_>, Vec<_>) = children.into_iter().partition(early);
            let missing = self.make_all(early)?;
            self.deferred.extend(missing);
            self.steps.push(Step::LeadSession(node));
            self.session[node] = Some(self.nodes[node].kin.pid);
            children = later;
        }
        let missing = self.make_all(children)?;
        self.deferred.extend(missing);
        Ok(())
    }

    /// Makes processes as far as that can be done, and returns the others.
    fn make_all(&mut self, mut waiting: Vec<usize>) -> Result<Vec<usize>, Refusal> {
        loop {
            let before = waiting.len();
            let mut missing = Vec::new();
            for node in waiting {
                if !self.try_make(node)? {
                    missing.push(node);
                }
            }
            if missing.is_empty() || missing.len() == before {
                return Ok(missing);
            }
            waiting = missing;
        }
    }

    /// Makes those whose makers had to be made first.
    fn make_deferred(&mut self) -> Result<(), Refusal> {
        loop {
            let waiting = std::mem::take(&mut self.deferred);
            let Some(&first) = waiting.first() else {
                return Ok(());
            };
            let steps = self.steps.len();
            let missing = self.make_all(waiting)?;
            self.deferred.extend(missing);
            if self.steps.len() == steps {
                let pid = self.nodes[first].kin.pid;
                return Err((pid, "no process that could make it has its session"));
            }
        }
    }

    /// Makes a process and then its children. False if nobody is there who can, yet.
    fn try_make(&mut self, node: usize) -> Result<bool, Refusal> {
        let place = self.place[node];
        let Some(partner) = self.partner(node)? else {
            return Ok(false);
        };
        if self.present(place).is_none() {
            return Ok(false);
        }
        let fits = |maker: Option<usize>| {
            let session = self.present(maker);
            session.is_some()
                && self.into[node].is_none_or(|wanted| session == Some(wanted))
                && partner.is_none_or(|partner| maker == Some(partner))
        };
        let exit_signal = |node: usize| self.nodes[node].kin.exit_signal;
        // Orphans' parents get SIGCHLD, whatever was wanted.
        let as_sibling = |maker: usize| {
            self.parent[maker] == place
                && (exit_signal(maker) == exit_signal(node) || exit_signal(node) != libc::SIGCHLD)
        };
        let makers = || (0..self.nodes.len()).filter(|&maker| fits(Some(maker)));
        if fits(place) {
            self.make(node, place, false);
        } else if let Some(sibling) = makers().find(|&maker| as_sibling(maker)) {
            self.make(node, Some(sibling), true);
        } else if let Some(maker) = makers().find(|&maker| self.is_below(maker, place)) {
            let helper = self.add_helper(self.free_id(), Some(maker), 0);
            self.nodes[helper].shares = self.nodes[node].shares;
            self.make(helper, Some(maker), false);
            self.make(node, Some(helper), false);
            self.steps.push(Step::End {
                node: helper,
                heir: place,
            });
            self.session[helper] = None;
            self.parent[node] = place;
        } else {
            return Ok(false);
        }
        self.make_children(Some(node))?;
        Ok(true)
    }

    /// Ends all helpers that are left. The last one made, of which none of the others is a child, comes first: as long as those above it
    /// are there, so is the ancestor that its children pass to.
    fn end_temporary(&mut self) {
        let made = self.steps.iter().rev().filter_map(|step| match *step {
            Step::Make { node, .. } => Some(node),
            _ => None,
        });
        let heirs: HashMap<usize, Option<usize>> = self.temporary.drain(..).collect();
        let end = |node| heirs.get(&node).map(|&heir| Step::End { node, heir });
        let ends: Vec<Step> = made.filter_map(end).collect();
        self.steps.extend(ends);
    }

    fn is_below(&self, node: usize, place: Option<usize>) -> bool {
        let mut above = std::iter::successors(self.parent[node], |&at| self.parent[at]);
        place.is_none_or(|place| above.any(|at| at == place))
    }

    /// Whom a process must be made by because they share something; none if that is not there yet.
    fn partner(&self, node: usize) -> Result<Option<Option<usize>>, Refusal> {
        let Node { kin, shares } = &self.nodes[node];
        let mut partners = shares.with();
        let Some(partner) = partners.next() else {
            return Ok(Some(None));
        };
        let refuse = |why| Err((kin.pid, why));
        if partners.any(|other| other != partner) {
            return refuse("it shares different things with different processes");
        }
        let Some(&maker) = self.index.get(&partner) else {
            return refuse("it shares something with a process that is not there");
        };
        if self.session[maker].is_none() {
            return Ok(None);
        }
        let place = self.place[node];
        if Some(maker) == place || self.is_below(maker, place) {
            Ok(Some(Some(maker)))
        } else {
            refuse("it shares something with a process that is neither its parent nor below that")
        }
    }

    /// Adds a process that is not of the image, and that has still to be made.
    fn add_helper(&mut self, pid: i32, place: Option<usize>, session: i32) -> usize {
        let kin = Kin {
            pid,
            parent: place.map_or(0, |place| self.nodes[place].kin.pid),
            group: 0,
            session,
            // A process that it makes as its sibling has the same.
            exit_signal: libc::SIGCHLD,
        };
        self.nodes.push(Node {
            kin,
            shares: Shares::default(),
        });
        self.place.push(place);
        self.into.push(None);
        self.session.push(None);
        self.parent.push(None);
        let node = self.nodes.len() - 1;
        self.index.insert(pid, node);
        node
    }

    /// An id that means nothing to the processes.
    fn free_id(&self) -> i32 {
        let used: HashSet<i32> = self
            .nodes
            .iter()
            .flat_map(|node| [node.kin.pid, node.kin.group, node.kin.session])
            .collect();
        (2..).find(|id| !used.contains(id)).unwrap_or(i32::MAX)
    }

    /// First all groups come to be, then each process joins its own.
    fn form_groups(&mut self) {
        let members: Vec<usize> = (0..self.nodes.len())
            .filter(|&n| self.nodes[n].kin.group != 0)
            .collect();
        let mut formed = HashSet::new();
        for &member in &members {
            let Kin { group, session, .. } = self.nodes[member].kin;
            if !formed.insert(group) {
                continue;
            }
            match self.index.get(&group).copied() {
                // The leader of a session leads a group from then on, and cannot leave it.
                Some(leader) if leads(&self.nodes[leader]) => {}
                Some(leader) => {
                    self.steps.push(Step::JoinGroup(leader, group));
                    if self.nodes[leader].kin.group != group {
                        // It will leave: somebody holds the place until all members have come.
                        let helper = self.add_helper(self.free_id(), Some(leader), session);
                        self.make(helper, Some(leader), false);
                        self.temporary.push((helper, Some(leader)));
                    }
                }
                None => {
                    let helper = self.add_helper(group, Some(member), session);
                    self.make(helper, Some(member), false);
                    self.steps.push(Step::JoinGroup(helper, group));
                    self.temporary.push((helper, Some(member)));
                }
            }
        }
        for member in members {
            let kin = self.nodes[member].kin;
            if kin.group != kin.pid && !leads(&self.nodes[member]) {
                self.steps.push(Step::JoinGroup(member, kin.group));
            }
        }
    }
}
