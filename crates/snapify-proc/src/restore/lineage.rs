//! In which order processes are made, and by whom, so that each has its parent, session and process group in the end.
//!
//! A child is born into the session of whoever makes it, and can leave it only to lead a session of its own (setsid(2)).
//! So a child that is to stay in a session is made by a process of that session: by its parent before that leads another,
//! by a sibling (`CLONE_PARENT`), or by a helper that ends at once, whereupon the child passes to the nearest subreaper or init as
//! orphans do. Leaders of sessions and groups that have ended are helpers too: their ids stay taken as long as
//! the session or group has members.

use crate::image::{Kin, Shares};
use std::collections::{HashMap, HashSet};

/// A process to be made. The helpers follow those of the image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Node {
    pub(crate) kin: Kin,
    pub(crate) shares: Shares,
    /// Whether orphans among its descendants become its children.
    pub(crate) subreaper: bool,
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
    /// It joins the group with this id, which may be its own.
    JoinGroup(usize, i32),
    /// It ends, and whoever is its parent by then takes note.
    End(usize),
}

/// The way to make all processes.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Lineage {
    pub(crate) nodes: Vec<Node>,
    pub(crate) steps: Vec<Step>,
}

/// Finds the way for these processes, which come after their parents.
///
/// # Errors
/// A process that cannot be made: its id, and why.
pub(crate) fn plan(nodes: Vec<Node>) -> Result<Lineage, (i32, &'static str)> {
    let index: HashMap<i32, usize> = nodes
        .iter()
        .enumerate()
        .map(|(n, node)| (node.kin.pid, n))
        .collect();
    let mut children: HashMap<Option<usize>, Vec<usize>> = HashMap::new();
    for (n, node) in nodes.iter().enumerate() {
        children
            .entry(index.get(&node.kin.parent).copied())
            .or_default()
            .push(n);
    }
    let mut planner = Planner {
        session: vec![None; nodes.len()],
        nodes,
        index,
        children,
        steps: Vec::new(),
        deferred: Vec::new(),
        temporary: Vec::new(),
    };
    planner.make_children(None)?;
    planner.make_deferred()?;
    planner.form_groups()?;
    for helper in std::mem::take(&mut planner.temporary) {
        planner.steps.push(Step::End(helper));
    }
    Ok(Lineage {
        nodes: planner.nodes,
        steps: planner.steps,
    })
}

struct Planner {
    nodes: Vec<Node>,
    index: HashMap<i32, usize>,
    /// By parent; `None` is the init.
    children: HashMap<Option<usize>, Vec<usize>>,
    /// The present session of each process that has been made.
    session: Vec<Option<i32>>,
    steps: Vec<Step>,
    /// Those that their parents cannot make.
    deferred: Vec<usize>,
    /// Helpers that end when all is done.
    temporary: Vec<usize>,
}

type Made = Result<(), (i32, &'static str)>;

/// Who makes a process, and whether as a sibling.
type Maker = (Option<usize>, bool);

impl Planner {
    fn leads(&self, node: usize) -> bool {
        self.nodes[node].kin.session == self.nodes[node].kin.pid
    }

    /// The session that a process must be born into; none if any will do.
    fn birth(&self, node: usize) -> Option<i32> {
        let kin = &self.nodes[node].kin;
        if kin.session != kin.pid {
            return Some(kin.session);
        }
        let children = self.children.get(&Some(node));
        // What its children need, and it cannot give them once it leads a session, it must have been born with.
        children
            .into_iter()
            .flatten()
            .filter_map(|&child| self.birth(child))
            .find(|&session| session != kin.pid && self.is_inherited(node, session))
    }

    /// Whether the parent of a process is, or is born, in a session: otherwise nothing is won by being born in it.
    fn is_inherited(&self, node: usize, session: i32) -> bool {
        match self.index.get(&self.nodes[node].kin.parent) {
            None => session == 0,
            Some(&parent) => {
                let kin = &self.nodes[parent].kin;
                kin.session == session || self.is_inherited(parent, session)
            }
        }
    }

    fn present(&self, maker: Option<usize>) -> Option<i32> {
        maker.map_or(Some(0), |node| self.session[node])
    }

    fn make(&mut self, node: usize, by: Option<usize>, sibling: bool) {
        self.steps.push(Step::Make { node, by, sibling });
        self.session[node] = self.present(by);
    }

    /// Makes the children of a process that has been made.
    fn make_children(&mut self, parent: Option<usize>) -> Made {
        let children = self.children.get(&parent).cloned().unwrap_or_default();
        let mut later = Vec::new();
        let born_in = self.present(parent);
        let changes = parent.is_some_and(|node| self.leads(node));
        for child in children {
            if changes && self.birth(child) == born_in && born_in.is_some() {
                self.make_grown(child, parent)?;
            } else {
                later.push(child);
            }
        }
        if let Some(node) = parent.filter(|_| changes) {
            self.steps.push(Step::LeadSession(node));
            self.session[node] = Some(self.nodes[node].kin.pid);
        }
        for child in later {
            match self.birth(child) {
                Some(session) if Some(session) != self.present(parent) => self.deferred.push(child),
                _ => self.make_grown(child, parent)?,
            }
        }
        Ok(())
    }

    /// Makes a process by its parent, or by whom it shares something with, and then its children.
    fn make_grown(&mut self, node: usize, parent: Option<usize>) -> Made {
        let (by, sibling) = self.sharer(node)?.unwrap_or((parent, false));
        self.make(node, by, sibling);
        self.make_children(Some(node))
    }

    /// Whom a process must be made by because they share something, and whether as a sibling.
    fn sharer(&self, node: usize) -> Result<Option<Maker>, (i32, &'static str)> {
        let Node { kin, shares, .. } = &self.nodes[node];
        let mut partners = shares.with();
        let Some(partner) = partners.next() else {
            return Ok(None);
        };
        let refuse = |why| Err((kin.pid, why));
        if partners.any(|other| other != partner) {
            return refuse("it shares different things with different processes");
        }
        let Some(&maker) = self.index.get(&partner) else {
            return refuse("it shares something with a process that is not there");
        };
        if self.session[maker].is_none() {
            return refuse("it shares something with a process that is made after it");
        }
        if partner == kin.parent {
            Ok(Some((Some(maker), false)))
        } else if self.nodes[maker].kin.parent == kin.parent {
            Ok(Some((Some(maker), true)))
        } else {
            refuse("it shares something with a process that is neither its parent nor its sibling")
        }
    }

    /// Makes those that their parents cannot make, because they belong to other sessions by now.
    fn make_deferred(&mut self) -> Made {
        loop {
            let waiting = std::mem::take(&mut self.deferred);
            if waiting.is_empty() {
                return Ok(());
            }
            let before = waiting.len();
            for node in waiting {
                if !self.make_in_session(node)? {
                    self.deferred.push(node);
                }
            }
            if self.deferred.len() == before {
                let pid = self.nodes[self.deferred[0]].kin.pid;
                return Err((pid, "no process that could make it has its session"));
            }
        }
    }

    /// Makes a process in a session that is not its parent's. False if nobody is there who can, yet.
    fn make_in_session(&mut self, node: usize) -> Result<bool, (i32, &'static str)> {
        let Some(session) = self.birth(node) else {
            return Ok(false);
        };
        let parent = self.nodes[node].kin.parent;
        let there = |planner: &Self, n: usize| planner.session[n] == Some(session);
        let all = 0..self.nodes.len();
        if let Some(sibling) = all
            .clone()
            .find(|&n| there(self, n) && self.nodes[n].kin.parent == parent)
        {
            self.make(node, Some(sibling), true);
        } else if let Some(member) = all.clone().find(|&n| there(self, n)) {
            let maker = self.index.get(&parent).copied();
            if maker.is_some_and(|maker| !self.adopts_from(maker, member)) {
                return Err((
                    self.nodes[node].kin.pid,
                    "its session is not one that its parent could have given it",
                ));
            }
            let helper = self.add_helper(self.free_id(), self.nodes[member].kin.pid, session);
            self.make(helper, Some(member), false);
            self.make(node, Some(helper), false);
            self.steps.push(Step::End(helper));
        } else if self.index.contains_key(&session) {
            // Its leader is still to be made.
            return Ok(false);
        } else {
            let helper = self.add_helper(session, parent, session);
            self.make(helper, self.index.get(&parent).copied(), false);
            self.steps.push(Step::LeadSession(helper));
            self.session[helper] = Some(session);
            self.make(node, Some(helper), true);
            self.temporary.push(helper);
        }
        self.make_children(Some(node))?;
        Ok(true)
    }

    /// Whether orphans of `member` become children of `reaper`: it is the nearest subreaper above.
    fn adopts_from(&self, reaper: usize, member: usize) -> bool {
        let mut at = member;
        while let Some(&parent) = self.index.get(&self.nodes[at].kin.parent) {
            if self.nodes[parent].subreaper {
                return parent == reaper;
            }
            at = parent;
        }
        false
    }

    fn add_helper(&mut self, pid: i32, parent: i32, session: i32) -> usize {
        let kin = Kin {
            pid,
            parent,
            group: 0,
            session,
            // A process that it makes as its sibling has the same.
            exit_signal: libc::SIGCHLD,
        };
        self.nodes.push(Node {
            kin,
            shares: Shares::default(),
            subreaper: false,
        });
        self.session.push(None);
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
    fn form_groups(&mut self) -> Made {
        let members: Vec<usize> = (0..self.nodes.len())
            .filter(|&n| self.nodes[n].kin.group != 0)
            .collect();
        let mut formed = HashSet::new();
        let mut helpers = Vec::new();
        for &member in &members {
            let Kin { group, session, .. } = self.nodes[member].kin;
            if !formed.insert(group) {
                continue;
            }
            match self.index.get(&group) {
                // The leader of a session leads a group from then on, and cannot leave it.
                Some(&leader) if self.leads(leader) => {}
                Some(&leader) => {
                    self.steps.push(Step::JoinGroup(leader, group));
                    if self.nodes[leader].kin.group != group {
                        // It will leave: somebody holds the place until all members have come.
                        let id = self.free_id();
                        let pid = self.nodes[leader].kin.pid;
                        let helper = self.add_helper(id, pid, session);
                        self.make(helper, Some(leader), false);
                        helpers.push(helper);
                    }
                }
                None => {
                    let helper = self.add_helper(group, self.nodes[member].kin.pid, session);
                    self.make(helper, Some(member), false);
                    self.steps.push(Step::JoinGroup(helper, group));
                    helpers.push(helper);
                }
            }
        }
        for member in members {
            let kin = self.nodes[member].kin;
            if kin.group != kin.pid && !self.leads(member) {
                self.steps.push(Step::JoinGroup(member, kin.group));
            }
        }
        self.temporary.extend(helpers);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(pid: i32, parent: i32, group: i32, session: i32) -> Node {
        Node {
            kin: Kin {
                pid,
                parent,
                group,
                session,
                exit_signal: 17,
            },
            shares: Shares::default(),
            subreaper: false,
        }
    }

    /// What the steps lead to: parent, group and session of each id that is left.
    fn carry_out(lineage: &Lineage) -> HashMap<i32, (i32, i32, i32)> {
        let pid = |n: usize| lineage.nodes[n].kin.pid;
        let subreaper = |id: i32| lineage.nodes.iter().any(|n| n.kin.pid == id && n.subreaper);
        let mut world: HashMap<i32, (i32, i32, i32)> = HashMap::new();
        for step in &lineage.steps {
            match *step {
                Step::Make { node, by, sibling } => {
                    let maker = by.map_or((0, 0, 0), |by| world[&pid(by)]);
                    let parent = if sibling { maker.0 } else { by.map_or(0, pid) };
                    let taken = world.values().any(|p| p.1 == pid(node) || p.2 == pid(node));
                    assert!(!taken && !world.contains_key(&pid(node)), "{step:?}");
                    world.insert(pid(node), (parent, maker.1, maker.2));
                }
                Step::LeadSession(node) => {
                    let id = pid(node);
                    assert!(world.values().all(|p| p.1 != id), "{step:?}");
                    let process = world.get_mut(&id).unwrap();
                    *process = (process.0, id, id);
                }
                Step::JoinGroup(node, group) => {
                    let (parent, _, session) = world[&pid(node)];
                    let there = world.values().any(|p| p.1 == group && p.2 == session);
                    assert!(there || group == pid(node), "{step:?}");
                    world.insert(pid(node), (parent, group, session));
                }
                Step::End(node) => {
                    let id = pid(node);
                    let mut heir = world[&id].0;
                    while heir != 0 && !subreaper(heir) {
                        heir = world[&heir].0;
                    }
                    world.remove(&id);
                    for process in world.values_mut().filter(|p| p.0 == id) {
                        process.0 = heir;
                    }
                }
            }
        }
        world
    }

    fn comes_out(nodes: &[Node]) {
        let lineage = plan(nodes.to_vec()).unwrap();
        let world = carry_out(&lineage);
        assert_eq!(world.len(), nodes.len(), "{lineage:?}");
        for node in nodes {
            let Kin {
                pid,
                parent,
                group,
                session,
                ..
            } = node.kin;
            assert_eq!(world[&pid], (parent, group, session), "{pid}: {lineage:?}");
        }
    }

    #[test]
    fn plain_trees_come_out() {
        comes_out(&[node(10, 0, 0, 0)]);
        comes_out(&[
            node(10, 0, 10, 0),
            node(11, 10, 10, 0),
            node(12, 10, 12, 0),
            node(13, 11, 12, 0),
        ]);
        comes_out(&[
            node(10, 0, 10, 10),
            node(11, 10, 11, 10),
            node(12, 11, 11, 10),
        ]);
    }

    #[test]
    fn children_stay_in_the_session_that_their_parent_has_left() {
        comes_out(&[node(10, 0, 0, 0), node(11, 10, 11, 11), node(12, 11, 0, 0)]);
        comes_out(&[
            node(10, 0, 10, 10),
            node(11, 10, 11, 11),
            node(12, 11, 12, 12),
            node(13, 12, 10, 10),
        ]);
    }

    #[test]
    fn leaders_that_have_ended_are_stood_in_for() {
        // The leader of a group.
        comes_out(&[node(10, 0, 9, 0), node(11, 10, 9, 0)]);
        // The leader of a session, and of a group in it.
        comes_out(&[node(10, 0, 8, 8), node(11, 10, 9, 8)]);
        // A daemon's: adopted by init and by a subreaper.
        let mut reaper = node(10, 0, 10, 10);
        reaper.subreaper = true;
        comes_out(&[
            reaper,
            node(11, 10, 11, 11),
            node(12, 10, 9, 9),
            node(14, 10, 11, 11),
        ]);
    }

    #[test]
    fn orphans_are_made_in_their_session_and_passed_on() {
        comes_out(&[
            node(10, 0, 10, 10),
            node(11, 10, 11, 11),
            node(12, 0, 11, 11),
        ]);
        let mut reaper = node(10, 0, 10, 10);
        reaper.subreaper = true;
        comes_out(&[
            reaper,
            node(11, 10, 11, 11),
            node(12, 11, 12, 12),
            node(13, 10, 12, 12),
        ]);
    }

    #[test]
    fn a_leader_may_have_left_its_group() {
        comes_out(&[
            node(10, 0, 10, 10),
            node(11, 10, 12, 10),
            node(12, 10, 11, 10),
        ]);
    }

    #[test]
    fn sharers_are_made_by_each_other() {
        let mut child = node(11, 10, 10, 10);
        child.shares.files = Some(10);
        let mut brother = node(12, 10, 10, 10);
        brother.shares.directory = Some(11);
        let nodes = [node(10, 0, 10, 10), child, brother];
        comes_out(&nodes);
        let lineage = plan(nodes.to_vec()).unwrap();
        assert!(lineage.steps.contains(&Step::Make {
            node: 2,
            by: Some(1),
            sibling: true
        }));
        let mut stranger = node(13, 12, 10, 10);
        stranger.shares.files = Some(10);
        let refused = plan(vec![nodes[0], node(12, 10, 10, 10), stranger]);
        assert_eq!(refused.unwrap_err().0, 13);
    }

    #[test]
    fn what_cannot_be_is_refused() {
        // A session that lies outside of a tree that has its members inside only.
        let nodes = vec![
            node(10, 0, 10, 10),
            node(11, 10, 11, 11),
            node(12, 10, 11, 11),
            node(13, 12, 0, 0),
        ];
        assert!(plan(nodes).is_err());
    }
}
