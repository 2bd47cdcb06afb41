//! A worker's connection to whoever asked for the work: events go out, its closing means "stop".

use crate::error::JobError;
use crate::events::Event;
use crate::protocol::Reply;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use snapify_fabric::Channel;
use snapify_store::Progress;
use std::os::fd::AsFd;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Events of progress are sent no oftener than this.
const INTERVAL: Duration = Duration::from_millis(50);

/// Whoever asked for the work, and whether they still want it.
pub(crate) struct Link {
    channel: Channel,
    pending: AtomicU64,
    sent: Mutex<Instant>,
    cancelled: AtomicBool,
}

impl Link {
    /// Wraps the connection.
    pub(crate) fn new(channel: Channel) -> Self {
        Self {
            channel,
            pending: AtomicU64::new(0),
            sent: Mutex::new(Instant::now()),
            cancelled: AtomicBool::new(false),
        }
    }

    /// The connection, for polling: readable means that the asker has gone.
    pub(crate) fn channel(&self) -> &Channel {
        &self.channel
    }

    /// Sends an event. An asker that has gone is noticed by [`Progress::cancelled`].
    pub(crate) fn tell(&self, event: Event) {
        self.reply(&Reply::Event { event });
    }

    /// Sends a reply.
    pub(crate) fn reply(&self, reply: &Reply) {
        if self.channel.send(reply, &[]).is_err() {
            self.cancelled.store(true, Ordering::Relaxed);
        }
    }

    /// Fails if the asker has gone.
    pub(crate) fn check(&self) -> Result<(), JobError> {
        if self.cancelled() {
            Err(JobError::Cancelled)
        } else {
            Ok(())
        }
    }

    /// Ends the capturing phase: what progress was held back is sent.
    pub(crate) fn flush(&self) {
        let bytes = self.pending.swap(0, Ordering::Relaxed);
        if bytes > 0 {
            self.tell(Event::Advance(bytes));
        }
    }
}

impl Progress for Link {
    fn advance(&self, bytes: u64) {
        self.pending.fetch_add(bytes, Ordering::Relaxed);
        // Whoever finds the lock taken leaves the telling to its holder.
        if let Ok(mut sent) = self.sent.try_lock()
            && sent.elapsed() >= INTERVAL
        {
            *sent = Instant::now();
            self.flush();
        }
    }

    fn cancelled(&self) -> bool {
        if self.cancelled.load(Ordering::Relaxed) {
            return true;
        }
        let mut fds = [PollFd::from_borrowed_fd(
            self.channel.as_fd(),
            PollFlags::IN,
        )];
        let now = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        // The asker has nothing to say any more, so that anything readable is its end.
        let gone = poll(&mut fds, Some(&now)).is_ok_and(|ready| ready > 0);
        if gone {
            self.cancelled.store(true, Ordering::Relaxed);
        }
        gone
    }
}
