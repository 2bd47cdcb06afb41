//! Saving the descriptors of a frozen process.

use super::locks::LockImage;
use super::regular::{OpenRemoved, RemovedFile};
use super::survey::{Found, Seen, Survey, View};
use super::{
    Description, Descriptor, FilesImage, Object, can_read, inet, mqueue, pipe, regular, share,
};
use crate::capture::CaptureContext;
use crate::error::{Obstacle, ProcError};
use crate::remote::Tracee;
use std::collections::HashMap;
use std::io;
use std::os::fd::AsFd;

/// Saves all descriptors of a frozen process. What cannot be saved is noted in `ctx`.
///
/// # Errors
/// If the process dies or a kernel interface that is needed is missing.
pub fn capture(
    _tracee: &mut Tracee<'_>,
    ctx: &CaptureContext<'_>,
) -> Result<FilesImage, ProcError> {
    let survey = Survey::new(ctx.proc, ctx.externals)?;
    survey
        .obstacles
        .into_iter()
        .for_each(|obstacle| ctx.refuse(obstacle));
    let representatives = share::group(ctx.pid, &survey.recognized)?;
    let mut builder = Builder {
        ctx,
        view: &survey.view,
        image: FilesImage::default(),
        pipes: HashMap::new(),
        removed: HashMap::new(),
        queues: HashMap::new(),
    };
    let mut described: HashMap<usize, usize> = HashMap::new();
    for (index, (seen, found)) in survey.recognized.iter().enumerate() {
        let representative = representatives[index];
        let description = match described.get(&representative) {
            Some(&description) => description,
            None => match builder.describe(seen, found) {
                Ok(description) => {
                    builder.image.descriptions.push(description);
                    let number = builder.image.descriptions.len() - 1;
                    described.insert(representative, number);
                    number
                }
                Err(obstacle) => {
                    ctx.refuse(obstacle);
                    continue;
                }
            },
        };
        builder.image.descriptors.push(Descriptor {
            fd: seen.fd,
            description,
            close_on_exec: seen.close_on_exec(),
        });
    }
    builder.fill_pipes(&survey.recognized);
    builder.save_sockets();
    Ok(builder.image)
}

struct Builder<'a> {
    ctx: &'a CaptureContext<'a>,
    view: &'a View<'a>,
    image: FilesImage,
    /// Index of each pipe by inode number.
    pipes: HashMap<u64, usize>,
    /// Index of each removed file by device and inode number.
    removed: HashMap<(u64, u64), usize>,
    /// Index of each message queue by device and inode number.
    queues: HashMap<(u64, u64), usize>,
}

impl Builder<'_> {
    fn describe(&mut self, seen: &Seen, found: &Found) -> Result<Description, Obstacle> {
        let object = match found {
            Found::Whole(object) => object.clone(),
            Found::Removed => Object::Removed(OpenRemoved {
                file: self.removed_file(seen)?,
                offset: seen.info.pos,
            }),
            Found::PipeEnd => Object::Pipe(pipe::PipeEnd {
                pipe: self.pipe(seen)?,
            }),
            Found::MessageQueue => Object::MessageQueue(mqueue::OpenQueue {
                queue: self.queue(seen)?,
            }),
            Found::Inet(socket) => Object::Inet(inet::InetDescription { socket: *socket }),
        };
        Ok(Description {
            flags: seen.flags(),
            locks: locks(seen, &object),
            object,
        })
    }

    fn removed_file(&mut self, seen: &Seen) -> Result<usize, Obstacle> {
        if let Some(&file) = self.removed.get(&seen.object_id()) {
            return Ok(file);
        }
        let unreadable =
            |error: io::Error| seen.obstacle(format!("its content cannot be read: {error}"));
        let content = regular::content(seen, self.view).map_err(unreadable)?;
        let seals = regular::seals(seen, &content);
        let object = self
            .ctx
            .objects_mut()
            .add_file(seen.link.to_string(), content, regular::directory(seen))
            .map_err(unreadable)?;
        self.image.removed.push(RemovedFile {
            object,
            was: seen.link.clone(),
            seals,
        });
        let file = self.image.removed.len() - 1;
        self.removed.insert(seen.object_id(), file);
        Ok(file)
    }

    fn pipe(&mut self, seen: &Seen) -> Result<usize, Obstacle> {
        if let Some(&pipe) = self.pipes.get(&seen.stat.st_ino) {
            return Ok(pipe);
        }
        let capacity = self
            .view
            .duplicate(seen.fd)
            .and_then(|end| Ok(rustix::pipe::fcntl_getpipe_size(&end)?))
            .map_err(|error| seen.obstacle(format!("its size cannot be read: {error}")))?;
        self.image.pipes.push(pipe::PipeImage {
            capacity,
            content: None,
        });
        let pipe = self.image.pipes.len() - 1;
        self.pipes.insert(seen.stat.st_ino, pipe);
        Ok(pipe)
    }

    fn queue(&mut self, seen: &Seen) -> Result<usize, Obstacle> {
        if let Some(&queue) = self.queues.get(&seen.object_id()) {
            return Ok(queue);
        }
        let path = format!("/proc/{}/fd/{}", self.view.proc.pid(), seen.fd);
        let image = mqueue::capture(seen, path.as_ref())?;
        self.image.queues.push(image);
        let queue = self.image.queues.len() - 1;
        self.queues.insert(seen.object_id(), queue);
        Ok(queue)
    }

    /// Saves all TCP and UDP sockets.
    fn save_sockets(&mut self) {
        let (image, obstacles) = self
            .view
            .inet
            .save(|what, bytes| self.ctx.objects_mut().add_bytes(what, bytes));
        self.image.inet = image;
        obstacles
            .into_iter()
            .for_each(|obstacle| self.ctx.refuse(obstacle));
    }

    /// Saves the contents of the pipes, each through any of its read ends. A pipe that nobody can
    /// read needs none.
    fn fill_pipes(&mut self, recognized: &[(Seen, Found)]) {
        for (seen, found) in recognized {
            if !matches!(found, Found::PipeEnd) || !can_read(seen.flags()) {
                continue;
            }
            // Each pipe once, whatever the number of its read ends.
            let Some(pipe) = self.pipes.remove(&seen.stat.st_ino) else {
                continue;
            };
            match self
                .view
                .duplicate(seen.fd)
                .and_then(|reader| pipe::content(reader.as_fd()))
            {
                Ok(content) if content.is_empty() => {}
                Ok(content) => {
                    let object = self
                        .ctx
                        .objects_mut()
                        .add_bytes(seen.link.to_string(), content);
                    self.image.pipes[pipe].content = Some(object);
                }
                Err(error) => self
                    .ctx
                    .refuse(seen.obstacle(format!("its content cannot be read: {error}"))),
            }
        }
    }
}

fn locks(seen: &Seen, object: &Object) -> Vec<LockImage> {
    // Locks on what the restart supplies are the supplier's business.
    if matches!(object, Object::External { .. } | Object::Stdio(_)) {
        return Vec::new();
    }
    seen.info.locks.iter().filter_map(LockImage::new).collect()
}
