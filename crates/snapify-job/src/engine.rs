//! The engine that card daemons save and rebuild offload processes with: `snapify-proc`.

use crate::snapshot::PAGES_FILE;
use snapify_offload::engine::{
    AfterCapture, CaptureOrder, Child, Engine, EngineError, LaunchSpec, RestoreOrder,
};
use snapify_proc::{
    External, Form, Frozen, Orphans, Pid, RemoteAddr, RemoteFd, RestorePlan, Restored,
};
use snapify_store::{PageFile, PageFileSummary};
use std::io::{BufReader, BufWriter, Write};
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::process::ExitStatus;

/// Number of the limit of private writable memory, as getrlimit(2) takes it.
const RLIMIT_DATA: u32 = libc::RLIMIT_DATA;

/// The process engine.
pub(crate) struct ProcessEngine;

impl Engine for ProcessEngine {
    fn launch(&self, spec: LaunchSpec) -> Result<Box<dyn Child>, EngineError> {
        let limits = spec
            .data_limit
            .map(|(soft, hard)| (RLIMIT_DATA, soft, hard));
        let launched = snapify_proc::launch(snapify_proc::LaunchSpec {
            program: spec.program,
            name: spec.args.first().cloned(),
            args: spec.args.into_iter().skip(1).collect(),
            env: Some(spec.env),
            directory: Some("/".into()),
            fds: spec.fds,
            limits: limits.into_iter().collect(),
            init_name: "snapify-init".into(),
        })?;
        Ok(Box::new(Process(launched)))
    }

    fn capture(&self, order: CaptureOrder<'_>) -> Result<PageFileSummary, EngineError> {
        let externals: Vec<_> = order.externals.iter().map(external).collect();
        let mut frozen = Frozen::freeze(Pid(order.pid))?;
        let image = frozen.describe(&externals)?;
        let mut meta = BufWriter::new(order.files.meta);
        serde_json::to_writer(&mut meta, &image)?;
        meta.flush()?;
        let name = Path::new(PAGES_FILE);
        let parent = match order.files.parent.is_empty() {
            true => None,
            false => Some(PageFile::open_chain(order.files.parent, name)?),
        };
        let form = match (&parent, order.form.hash_seed) {
            (Some(parent), _) => Form::Different { parent },
            (None, Some(seed)) => Form::Hashed(seed),
            (None, None) => Form::Full,
        };
        let out = (order.files.pages, PAGES_FILE);
        let summary = frozen.save_as(form, &order.form.write, out, order.progress)?;
        match (order.during)(&summary)? {
            AfterCapture::Resume => frozen.thaw()?,
            AfterCapture::Terminate => frozen.kill()?,
        }
        Ok(summary)
    }

    fn restore(&self, order: RestoreOrder) -> Result<Box<dyn Child>, EngineError> {
        let image = serde_json::from_reader(BufReader::new(order.meta))?;
        let restored = snapify_proc::restore(RestorePlan {
            image,
            pages: PageFile::open_chain(order.pages, Path::new(PAGES_FILE))?,
            externals: order.externals,
            stdio: None,
            progress: &(),
            init_name: order.init_name,
            orphans: Orphans::End,
            // What is compared need not be followed.
            track: false,
        })?;
        Ok(Box::new(Process(restored)))
    }
}

/// What an agent declared its own, in the engine's words.
pub(crate) fn external(external: &snapify_offload::engine::External) -> External {
    External {
        key: external.key.clone(),
        fds: external.fds.iter().map(|fd| RemoteFd(*fd)).collect(),
        mappings: external
            .mappings
            .iter()
            .map(|(at, bytes)| (RemoteAddr(*at), *bytes))
            .collect(),
    }
}

struct Process(Restored);

impl Child for Process {
    fn pid(&self) -> i32 {
        self.0.pid().0
    }

    fn status_fd(&self) -> BorrowedFd<'_> {
        self.0.status_fd()
    }

    fn start(&mut self) -> Result<(), EngineError> {
        Ok(self.0.start()?)
    }

    fn try_wait(&mut self) -> Result<Option<ExitStatus>, EngineError> {
        Ok(self.0.try_wait()?)
    }

    fn kill(&mut self) {
        self.0.kill();
    }
}
