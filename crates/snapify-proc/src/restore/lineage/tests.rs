//! Plans, carried out on a model of the kernel.

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
    }
}

/// What the steps lead to: parent, group and session of each id that is left.
fn carry_out(lineage: &Lineage) -> HashMap<i32, (i32, i32, i32)> {
    let pid = |n: usize| lineage.nodes[n].kin.pid;
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
            Step::Unshare { .. } => {}
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
            Step::End { node, heir } => {
                let id = pid(node);
                let heir = heir.map_or(0, pid);
                let mut above = world[&id].0;
                world.remove(&id);
                let orphans: Vec<i32> =
                    world.keys().copied().filter(|p| world[p].0 == id).collect();
                while above != heir && !orphans.is_empty() {
                    above = world[&above].0;
                }
                for orphan in orphans {
                    world.get_mut(&orphan).unwrap().0 = heir;
                }
            }
        }
    }
    world
}

fn comes_out(nodes: &[Node]) {
    let lineage = plan(nodes).unwrap();
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
    let reaper = node(10, 0, 10, 10);
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
    let reaper = node(10, 0, 10, 10);
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
    let lineage = plan(&nodes).unwrap();
    assert!(lineage.steps.contains(&Step::Make {
        node: 2,
        by: Some(1),
        sibling: true
    }));
    let mut stranger = node(13, 12, 10, 10);
    stranger.shares.files = Some(11);
    let refused = plan(&[nodes[0], child, node(12, 10, 10, 10), stranger]);
    assert_eq!(refused.unwrap_err().0, 13);
}

#[test]
fn what_comes_from_further_above_is_passed_on() {
    let shares = |pid, parent, with| {
        let mut node = node(pid, parent, 10, 10);
        node.shares.files = with;
        node
    };
    let nodes = [
        shares(10, 0, None),
        shares(11, 10, None),
        shares(12, 11, Some(10)),
        shares(13, 12, Some(10)),
        shares(14, 13, None),
    ];
    comes_out(&nodes);
    let lineage = plan(&nodes).unwrap();
    let with = |n: usize| lineage.nodes[n].shares.files;
    let found: Vec<_> = (0..nodes.len()).map(with).collect();
    assert_eq!(found, [None, Some(10), Some(11), Some(12), None]);
    let flags = libc::CLONE_FILES;
    let unshared = lineage.steps.iter();
    let unshared: Vec<_> = unshared
        .filter(|step| matches!(step, Step::Unshare { .. }))
        .collect();
    assert_eq!(unshared, [&Step::Unshare { node: 1, flags }]);
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
    assert!(plan(&nodes).is_err());
}

#[test]
fn subreapers_have_children_of_any_session_below() {
    // Of a session whose leader is below another child.
    comes_out(&[
        node(10, 0, 10, 10),
        node(11, 10, 11, 10),
        node(12, 11, 12, 12),
        node(13, 10, 12, 12),
    ]);
    // Whose leader has gone up further than the member has: it was born below that one's parent.
    comes_out(&[
        node(10, 0, 10, 10),
        node(11, 10, 10, 10),
        node(12, 11, 13, 13),
        node(13, 10, 13, 13),
    ]);
    // Whose leader has ended, among processes that lead others.
    comes_out(&[
        node(10, 0, 10, 10),
        node(11, 10, 11, 11),
        node(12, 11, 9, 9),
        node(13, 10, 13, 13),
        node(14, 13, 9, 9),
    ]);
}

#[test]
fn a_process_may_have_been_taken_over_from_a_sibling() {
    // Two sessions whose leaders have ended, each with a member below both.
    comes_out(&[
        node(10, 0, 10, 10),
        node(11, 10, 11, 11),
        node(12, 10, 12, 12),
        node(13, 11, 8, 8),
        node(14, 11, 9, 9),
        node(15, 12, 8, 8),
        node(16, 12, 9, 9),
    ]);
    // With two leaders below it, whose sessions have members below two other processes.
    comes_out(&[
        node(10, 0, 10, 10),
        node(11, 10, 10, 10),
        node(12, 10, 12, 12),
        node(13, 11, 13, 13),
        node(14, 11, 14, 14),
        node(15, 12, 13, 13),
        node(16, 12, 14, 14),
    ]);
}

#[test]
fn helpers_end_from_below() {
    // 13 was born below 10, and that below 11.
    comes_out(&[
        node(10, 0, 0, 0),
        node(11, 0, 11, 11),
        node(12, 10, 13, 13),
        node(13, 11, 13, 13),
    ]);
}

#[test]
fn a_signal_for_the_parent_that_a_sibling_does_not_have_is_no_siblings() {
    let mut leader = node(11, 10, 11, 11);
    leader.kin.exit_signal = 0;
    let nodes = [node(10, 0, 10, 10), leader, node(12, 10, 11, 11)];
    comes_out(&nodes);
    let lineage = plan(&nodes).unwrap();
    let by_sibling = |step: &Step| {
        matches!(
            step,
            Step::Make {
                node: 2,
                sibling: true,
                ..
            }
        )
    };
    assert!(!lineage.steps.iter().any(by_sibling));
}

#[test]
fn sharers_may_be_further_down() {
    let mut reaped = node(12, 10, 10, 10);
    reaped.shares.files = Some(11);
    let nodes = [
        node(10, 0, 10, 10),
        node(9, 10, 10, 10),
        node(11, 9, 10, 10),
        reaped,
    ];
    comes_out(&nodes);
    let lineage = plan(&nodes).unwrap();
    assert_eq!(lineage.nodes[4].shares.files, Some(11));
    let made = |node, by| Step::Make {
        node,
        by: Some(by),
        sibling: false,
    };
    assert!(lineage.steps.contains(&made(4, 2)) && lineage.steps.contains(&made(3, 4)));
}

/// A process as the kernel knows it.
#[derive(Clone, Copy)]
struct Process {
    node: Node,
    subreaper: bool,
    ended: bool,
}

/// Processes that do at random what changes their relations.
struct World {
    processes: Vec<Process>,
    last_id: i32,
    random: u64,
}

impl World {
    fn new(seed: u64) -> Self {
        let first = Process {
            node: node(10, 0, 0, 0),
            subreaper: seed % 2 == 1,
            ended: false,
        };
        Self {
            processes: vec![first],
            last_id: 10,
            random: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1,
        }
    }

    /// A number below `end`, by Marsaglia's xorshift.
    fn below(&mut self, end: usize) -> usize {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (self.random >> 33) as usize % end
    }

    fn position(&self, pid: i32) -> Option<usize> {
        self.processes.iter().position(|p| p.node.kin.pid == pid)
    }

    fn act(&mut self) {
        let at = self.below(self.processes.len());
        let Process { node, ended, .. } = self.processes[at];
        let Kin { pid, parent, .. } = node.kin;
        if ended {
            return self.reap(at);
        }
        match self.below(12) {
            0..=3 => self.make(node.kin, pid),
            4 if parent != 0 => self.make(node.kin, parent),
            5 | 6 => {
                let mut groups = self.processes.iter().map(|p| p.node.kin.group);
                if groups.all(|group| group != pid) {
                    let kin = &mut self.processes[at].node.kin;
                    (kin.group, kin.session) = (pid, pid);
                }
            }
            7 => self.join_group(at),
            8 => self.processes[at].subreaper ^= true,
            9..=11 if pid != 10 => self.end(at),
            _ => {}
        }
    }

    fn make(&mut self, maker: Kin, parent: i32) {
        self.last_id += 1;
        let kin = Kin {
            pid: self.last_id,
            parent,
            ..maker
        };
        self.processes.push(Process {
            node: Node {
                kin,
                shares: Shares::default(),
            },
            subreaper: false,
            ended: false,
        });
    }

    fn join_group(&mut self, at: usize) {
        let kin = self.processes[at].node.kin;
        let other = self.below(self.processes.len());
        let other = self.processes[other].node.kin;
        // A group outside has no id to come back by.
        if kin.session != kin.pid && other.group != 0 {
            let group = if other.session == kin.session {
                other.group
            } else {
                kin.pid
            };
            self.processes[at].node.kin.group = group;
        }
    }

    fn end(&mut self, at: usize) {
        let pid = self.processes[at].node.kin.pid;
        let mut heir = self.processes[at].node.kin.parent;
        while let Some(above) = self.position(heir).map(|at| self.processes[at])
            && !above.subreaper
        {
            heir = above.node.kin.parent;
        }
        self.processes[at].ended = true;
        for process in &mut self.processes {
            if process.node.kin.parent == pid {
                process.node.kin.parent = heir;
            }
        }
        // The init takes note at once.
        self.processes
            .retain(|p| !p.ended || p.node.kin.parent != 0);
    }

    fn reap(&mut self, at: usize) {
        self.processes.remove(at);
    }

    /// As in an image: parents before their children, then the ended ones.
    fn nodes(&self) -> Vec<Node> {
        let children = |parent: i32| {
            let all = self
                .processes
                .iter()
                .filter(move |p| p.node.kin.parent == parent);
            all.copied()
        };
        let mut order: Vec<Process> = children(0).collect();
        let mut at = 0;
        while let Some(process) = order.get(at) {
            order.extend(children(process.node.kin.pid));
            at += 1;
        }
        order.sort_by_key(|process| process.ended);
        order.iter().map(|process| process.node).collect()
    }
}

#[test]
fn whatever_processes_do_they_come_out() {
    for seed in 0..1000 {
        let mut world = World::new(seed);
        let acts = 10 + world.below(150);
        for _ in 0..acts {
            world.act();
        }
        comes_out(&world.nodes());
    }
}
