//! An image whose files lie elsewhere by now.

use super::TreeImage;
use crate::error::ProcError;
use crate::path::ImagePath;
use serde_json::Value;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Members of an image that hold names which may look like paths: of threads, memory and message queues.
const NAMES: &str = "name";

impl TreeImage {
    /// The image with every path below an old root led to the new one: working directories, executables, mapped and open files,
    /// addresses of sockets. Of several roots that a path lies below, the longest counts.
    ///
    /// # Errors
    /// [`ProcError::BadImage`] if a root is not absolute.
    pub fn relocated(&self, roots: &[(PathBuf, PathBuf)]) -> Result<Self, ProcError> {
        let odd = roots
            .iter()
            .flat_map(|(old, new)| [old, new])
            .find(|root| !root.is_absolute());
        if let Some(root) = odd {
            let why = format!("the root {} is no absolute path", root.display());
            return Err(ProcError::BadImage(why));
        }
        let wrong = |error: serde_json::Error| ProcError::BadImage(error.to_string());
        let mut value = serde_json::to_value(self).map_err(wrong)?;
        lead(&mut value, roots)?;
        serde_json::from_value(value).map_err(wrong)
    }
}

/// Leads all paths in a part of an image. What begins with a slash is a path, but for [`NAMES`]: whatever kinds of objects an
/// image holds, none is forgotten.
fn lead(value: &mut Value, roots: &[(PathBuf, PathBuf)]) -> Result<(), ProcError> {
    match value {
        Value::String(text) if text.starts_with('/') => {
            if let Some(path) = led(Path::new(text), roots) {
                *value = stored(path)?;
            }
        }
        Value::Object(members) => {
            if is_bytes(members) {
                let path: Result<ImagePath, _> = serde_json::from_value(value.clone());
                let path = path.map_err(|error| ProcError::BadImage(error.to_string()))?;
                if let Some(path) = led(&path, roots) {
                    *value = stored(path)?;
                }
                return Ok(());
            }
            for (key, member) in members {
                let is_name = key == NAMES
                    && (member.is_string() || member.as_object().is_some_and(is_bytes));
                if !is_name {
                    lead(member, roots)?;
                }
            }
        }
        Value::Array(elements) => {
            for element in elements {
                lead(element, roots)?;
            }
        }
        _ => {}
    }
    Ok(())
}

/// Whether this is how a path that is no text is stored.
fn is_bytes(members: &serde_json::Map<String, Value>) -> bool {
    members.len() == 1 && members.get("hex").is_some_and(Value::is_string)
}

fn stored(path: ImagePath) -> Result<Value, ProcError> {
    serde_json::to_value(path).map_err(|error| ProcError::BadImage(error.to_string()))
}

/// Where a path leads now, if it lies below a root: the longest counts.
#[must_use]
pub fn led(path: &Path, roots: &[(PathBuf, PathBuf)]) -> Option<ImagePath> {
    let below = |(old, new)| Some((new, path.strip_prefix::<&PathBuf>(old).ok()?));
    let (new, rest) = roots
        .iter()
        .map(|(old, new)| (old, new))
        .filter_map(below)
        .min_by_key(|(_, rest)| rest.components().count())?;
    if rest.as_os_str().is_empty() {
        return Some(ImagePath::from(new.as_path()));
    }
    let new = new.as_os_str().as_bytes();
    let new = new.strip_suffix(b"/").unwrap_or(new);
    let rest = rest.as_os_str().as_bytes();
    Some(ImagePath::from_bytes([new, b"/", rest].concat()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn roots() -> Vec<(PathBuf, PathBuf)> {
        vec![
            (PathBuf::from("/data/"), PathBuf::from("/mnt")),
            (PathBuf::from("/data/old"), PathBuf::from("/new")),
        ]
    }

    #[test]
    fn paths_below_a_root_are_led() {
        let of = |path: &str| led(Path::new(path), &roots()).map(|path| path.to_string());
        assert_eq!(of("/data").as_deref(), Some("/mnt"));
        assert_eq!(of("/data/a b").as_deref(), Some("/mnt/a b"));
        assert_eq!(of("/data/old/x/y").as_deref(), Some("/new/x/y"));
        assert_eq!(of("/database"), None);
        assert_eq!(of("/"), None);
    }

    #[test]
    fn names_and_other_texts_stay() {
        let mut value = json!({
            "directory": "/data/work",
            "name": "/data",
            "files": [{ "path": "/data/old" }, { "path": { "hex": "2f646174612fff" } }],
            "pipe": { "name": { "path": "/data/fifo" } },
            "what": "in /data/x",
        });
        lead(&mut value, &roots()).unwrap();
        assert_eq!(
            value,
            json!({
                "directory": "/mnt/work",
                "name": "/data",
                "files": [{ "path": "/new" }, { "path": { "hex": "2f6d6e742fff" } }],
                "pipe": { "name": { "path": "/mnt/fifo" } },
                "what": "in /data/x",
            })
        );
    }
}
