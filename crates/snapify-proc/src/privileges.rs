//! Capabilities (capabilities(7)) and what limits them. They belong to each thread; a process whose
//! threads differ in them is refused by the check.
//!
//! A process in a new user namespace has all capabilities there while it is being built, whatever
//! it had. What it had not is taken away at the end; what it had and the restart cannot give is
//! missing, and a warning says so.

use crate::error::ProcError;
use crate::ids::Tid;
use crate::procfs::status::{CapSets, Status};
use crate::remote::Tracee;
use crate::restore::RestoreContext;
use serde::{Deserialize, Serialize};

/// Privileges of a process.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Privileges {
    /// Capability sets.
    pub capabilities: CapSets,
    /// `PR_SET_SECUREBITS`
    pub secure_bits: u64,
    /// `PR_SET_NO_NEW_PRIVS`
    pub no_new_privileges: bool,
    /// Supplementary groups. Whoever may not set them has those of the restart.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub groups: Option<Vec<u32>>,
}

/// `_LINUX_CAPABILITY_VERSION_3`: two 32-bit words for each set.
const CAPABILITY_VERSION: u32 = 0x2008_0522;

/// Leave to drop bounds and to change secure bits.
const CAP_SETPCAP: u32 = 8;

impl Privileges {
    pub(crate) fn capture(tracee: &mut Tracee<'_>, status: &Status) -> Result<Self, ProcError> {
        Ok(Self {
            capabilities: status.caps,
            secure_bits: tracee.syscall(
                "prctl",
                libc::SYS_prctl,
                [libc::PR_GET_SECUREBITS as u64, 0, 0, 0, 0, 0],
            )?,
            no_new_privileges: status.no_new_privs,
            groups: Some(status.groups.clone()),
        })
    }

    /// Reduces the privileges of every thread to the saved ones. Nothing that needs privileges can
    /// follow.
    pub(crate) fn restore(
        &self,
        tracee: &mut Tracee<'_>,
        ctx: &RestoreContext<'_>,
    ) -> Result<(), ProcError> {
        let path = "/proc/self/status";
        // The process under construction has been cloned off us and has what we have.
        let own = std::fs::read(path)
            .and_then(|text| Status::parse(&text).map_err(Into::into))
            .map_err(ProcError::proc(path))?;
        let present = own.caps;
        let groups = self.groups.as_ref().filter(|groups| **groups != own.groups);
        let wanted = within(&self.capabilities, &present);
        let missing = self.capabilities.permitted & !wanted.permitted;
        if missing != 0 {
            ctx.warn(format!(
                "capabilities that the program had cannot be had here (bit mask {missing:#x})"
            ));
        }
        let secure_bits = tracee.syscall(
            "prctl",
            libc::SYS_prctl,
            [libc::PR_GET_SECUREBITS as u64, 0, 0, 0, 0, 0],
        )?;
        for tid in tracee.tids() {
            if let Some(groups) = groups {
                set_groups(tracee, tid, groups)?;
            }
            self.restore_thread(
                tracee,
                tid,
                secure_bits != self.secure_bits,
                &wanted,
                &present,
            )?;
        }
        Ok(())
    }

    fn restore_thread(
        &self,
        tracee: &mut Tracee<'_>,
        tid: Tid,
        set_secure_bits: bool,
        wanted: &CapSets,
        present: &CapSets,
    ) -> Result<(), ProcError> {
        let mut prctl = |args: [u64; 4]| {
            tracee
                .syscall_in(
                    tid,
                    "prctl",
                    libc::SYS_prctl,
                    [args[0], args[1], args[2], args[3], 0, 0],
                )
                .map(drop)
        };
        let may_change_others = present.effective >> CAP_SETPCAP & 1 == 1;
        if may_change_others {
            for capability in bits(present.bounding & !wanted.bounding) {
                prctl([libc::PR_CAPBSET_DROP as u64, capability, 0, 0])?;
            }
            if set_secure_bits {
                prctl([libc::PR_SET_SECUREBITS as u64, self.secure_bits, 0, 0])?;
            }
        }
        if self.no_new_privileges {
            prctl([libc::PR_SET_NO_NEW_PRIVS as u64, 1, 0, 0])?;
        }
        if present.ambient & !wanted.ambient != 0 {
            prctl([
                libc::PR_CAP_AMBIENT as u64,
                libc::PR_CAP_AMBIENT_CLEAR_ALL as u64,
                0,
                0,
            ])?;
        }
        let three = |sets: &CapSets| (sets.effective, sets.permitted, sets.inheritable);
        if three(wanted) == three(present) && wanted.ambient == present.ambient {
            return Ok(());
        }
        let at = tracee.scratch().addr;
        let data_at = at.offset(8);
        tracee.put(at, &[CAPABILITY_VERSION, 0])?;
        let word = |set: u64, shift| (set >> shift) as u32;
        let half = |shift| {
            [
                word(wanted.effective, shift),
                word(wanted.permitted, shift),
                word(wanted.inheritable, shift),
            ]
        };
        tracee.put(data_at, &[half(0), half(32)])?;
        tracee.syscall_in(
            tid,
            "capset",
            libc::SYS_capset,
            [at.0, data_at.0, 0, 0, 0, 0],
        )?;
        for capability in bits(wanted.ambient) {
            let args = [
                libc::PR_CAP_AMBIENT as u64,
                libc::PR_CAP_AMBIENT_RAISE as u64,
                capability,
                0,
                0,
                0,
            ];
            tracee.syscall_in(tid, "prctl", libc::SYS_prctl, args)?;
        }
        Ok(())
    }
}

/// Sets the supplementary groups of a thread, if that is allowed: in a user namespace of an ordinary user's it is not.
fn set_groups(tracee: &mut Tracee<'_>, tid: Tid, groups: &[u32]) -> Result<(), ProcError> {
    let scratch = tracee.scratch();
    let bytes: Vec<u8> = groups
        .iter()
        .flat_map(|group| group.to_ne_bytes())
        .collect();
    if bytes.len() as u64 > scratch.len {
        let why = format!("it has {} supplementary groups", groups.len());
        return Err(ProcError::BadImage(why));
    }
    tracee.write(scratch.addr, &bytes)?;
    let args = [groups.len() as u64, scratch.addr.0, 0, 0, 0, 0];
    match tracee.syscall_in(tid, "setgroups", libc::SYS_setgroups, args) {
        Err(ProcError::RemoteSyscall { source, .. })
            if matches!(source.raw_os_error(), Some(libc::EPERM | libc::EINVAL)) =>
        {
            tracing::debug!("thread {tid} has the supplementary groups of the restart: {source}");
            Ok(())
        }
        other => other.map(drop),
    }
}

/// The part of `saved` that can be had by one who has `present`.
fn within(saved: &CapSets, present: &CapSets) -> CapSets {
    let permitted = saved.permitted & present.permitted;
    let inheritable =
        saved.inheritable & (present.inheritable | present.permitted & present.bounding);
    CapSets {
        inheritable,
        permitted,
        effective: saved.effective & permitted,
        bounding: saved.bounding & present.bounding,
        ambient: saved.ambient & permitted & inheritable,
    }
}

/// The numbers of the bits that are set.
fn bits(set: u64) -> impl Iterator<Item = u64> {
    (0..64).filter(move |bit| set >> bit & 1 == 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_gained() {
        let all = CapSets {
            inheritable: !0,
            permitted: !0,
            effective: !0,
            bounding: !0,
            ambient: !0,
        };
        assert_eq!(within(&all, &CapSets::default()), CapSets::default());
        assert_eq!(within(&CapSets::default(), &all), CapSets::default());
        let some = CapSets {
            permitted: 6,
            effective: 2,
            ..CapSets::default()
        };
        assert_eq!(within(&some, &all), some);
        let fewer = CapSets {
            permitted: 4,
            bounding: 4,
            ..CapSets::default()
        };
        assert_eq!(
            within(&all, &fewer),
            CapSets {
                permitted: 4,
                effective: 4,
                bounding: 4,
                inheritable: 4,
                ambient: 4
            }
        );
        assert_eq!(bits(0b1001).collect::<Vec<_>>(), [0, 3]);
    }
}
