//! Finding the offload process that is meant.

use super::{Cards, Which};
use crate::checkpoint::{HostAgent, Request};
use crate::error::JobError;
use snapify_offload::control::{HostProcess, HostProcessState, HostToSupervisor, SupervisorToHost};

/// Finds the one process that `which` means and that is in the state that the operation (`verb`) needs.
///
/// # Errors
/// If there is none, or several.
pub(super) fn select<'a>(
    agents: &[HostAgent<'a>],
    cards: &Cards,
    which: &Which,
    wanted: HostProcessState,
    verb: &str,
) -> Result<(Request<'a>, HostProcess), JobError> {
    if agents.is_empty() {
        return Err(super::no_cards());
    }
    let mut all = Vec::new();
    let meant = |agent: &&HostAgent<'a>| which.host.is_none_or(|host| host == agent.pid);
    for agent in agents.iter().filter(meant) {
        let request = Request::new(*agent);
        match processes_of(&request) {
            Ok(processes) => all.extend(processes.into_iter().map(|process| (request, process))),
            // What it had on cards has ended with it.
            Err(JobError::Died { .. }) if agents.len() > 1 => {}
            Err(error) => return Err(error),
        }
    }
    let processes = all.iter().map(|(_, process)| process.clone()).collect();
    let chosen = choose(processes, cards, which, wanted, verb).map_err(JobError::Refused)?;
    let found = all.into_iter().find(|(_, process)| process.id == chosen.id);
    found.ok_or_else(super::no_cards)
}

/// The offload processes of a host process.
fn processes_of(request: &Request<'_>) -> Result<Vec<HostProcess>, JobError> {
    request.send(&SupervisorToHost::Processes, &[])?;
    loop {
        match request.receive()? {
            HostToSupervisor::Processes { processes } => return Ok(processes),
            HostToSupervisor::Failed { message } => return Err(JobError::Refused(message)),
            // An answer that nobody waited for.
            _ => {}
        }
    }
}

fn choose(
    processes: Vec<HostProcess>,
    cards: &Cards,
    which: &Which,
    wanted: HostProcessState,
    verb: &str,
) -> Result<HostProcess, String> {
    let named = |process: &HostProcess| {
        process.state != HostProcessState::Dead
            && which.process.as_ref().is_none_or(|name| {
                process
                    .id
                    .to_string()
                    .starts_with(&name.to_ascii_lowercase())
            })
            && which.card.is_none_or(|card| {
                process.state != HostProcessState::SwappedOut && cards.real(process.card) == card
            })
    };
    let (fit, others): (Vec<HostProcess>, Vec<HostProcess>) = processes
        .into_iter()
        .filter(named)
        .partition(|process| process.state == wanted);
    let list = |processes: &[HostProcess]| {
        let each = processes.iter().map(|process| {
            let card = cards.real(process.card);
            match process.state {
                HostProcessState::SwappedOut => format!("{} (swapped out)", process.id),
                HostProcessState::Paused => format!("{} on card {card} (paused)", process.id),
                _ => format!("{} on card {card}", process.id),
            }
        });
        each.collect::<Vec<_>>().join(", ")
    };
    match (&fit[..], &others[..]) {
        ([one], _) => Ok(one.clone()),
        ([], []) => Err(match (&which.process, which.card) {
            (Some(name), _) => format!("the application has no offload process {name}"),
            (None, Some(card)) => format!("the application has no offload process on card {card}"),
            (None, None) => "the application has no offload process".into(),
        }),
        ([], [one]) => Err(format!(
            "cannot {verb} offload process {}: {}",
            one.id,
            match one.state {
                HostProcessState::SwappedOut => "it is swapped out",
                HostProcessState::Paused => "the program itself has paused it",
                _ => "it is not swapped out",
            }
        )),
        ([], others) => Err(format!(
            "there is no offload process to {verb}: there are {}",
            list(others)
        )),
        (several, _) => Err(format!(
            "there are several offload processes to {verb}, name one of them: {}",
            list(several)
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use HostProcessState::{Dead, Paused, Running, SwappedOut};
    use snapify_offload::ProcessId;

    fn pick(
        process: Option<&str>,
        card: Option<u32>,
        wanted: HostProcessState,
    ) -> Result<u64, String> {
        let process_of = |id, card, state| HostProcess {
            id: ProcessId(id),
            card,
            state,
        };
        let processes = vec![
            process_of(0xa100_0000_0000_0000, 0, Running),
            process_of(0xa200_0000_0000_0000, 1, Running),
            process_of(0xb000_0000_0000_0000, 1, SwappedOut),
            process_of(0xc000_0000_0000_0000, 0, Dead),
            process_of(0xd000_0000_0000_0000, 2, Paused),
        ];
        let cards = Cards {
            card_of: vec![1, 0, 2],
            count: 3,
            lost: Vec::new(),
        };
        let which = Which {
            process: process.map(str::to_owned),
            card,
            host: None,
        };
        choose(processes, &cards, &which, wanted, "move").map(|found| found.id.0)
    }

    #[test]
    fn the_one_that_is_meant() {
        assert_eq!(pick(Some("A1"), None, Running), Ok(0xa100_0000_0000_0000));
        assert_eq!(pick(None, Some(0), Running), Ok(0xa200_0000_0000_0000));
        assert_eq!(pick(None, None, SwappedOut), Ok(0xb000_0000_0000_0000));
        let refused = |name, card, words: &str| {
            let error = pick(name, card, Running).unwrap_err();
            assert!(error.contains(words), "{error}");
        };
        refused(None, None, "several");
        refused(Some("a"), None, "a200000000000000 on card 0");
        refused(Some("b"), None, "it is swapped out");
        refused(Some("c"), None, "no offload process c");
        refused(Some("d"), None, "paused");
        refused(None, Some(7), "on card 7");
        let error = pick(Some("a1"), None, SwappedOut).unwrap_err();
        assert!(error.contains("not swapped out"), "{error}");
    }
}
