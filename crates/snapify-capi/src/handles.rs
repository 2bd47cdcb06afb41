//! Handles: numbers that stand for objects.

use crate::error::{Code, Result};
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// The objects of one kind. A number is never used twice.
pub struct Handles<T> {
    /// Tells the kinds apart, so that the handle of one is none of another.
    kind: u64,
    next: AtomicU64,
    objects: RwLock<HashMap<u64, Arc<T>>>,
}

impl<T> Handles<T> {
    /// No objects yet. `kind` is a small number of its own, not 0.
    pub fn new(kind: u8) -> Self {
        Self {
            kind: u64::from(kind) << 40,
            next: AtomicU64::new(1),
            objects: RwLock::default(),
        }
    }

    /// Adds an object. Handles grow with time, and are aligned as pointers are.
    pub fn add(&self, object: Arc<T>) -> u64 {
        let handle = self.kind | self.next.fetch_add(1, Ordering::Relaxed) << 4;
        self.write().insert(handle, object);
        handle
    }

    /// The object of a handle.
    pub fn get(&self, handle: u64) -> Result<Arc<T>> {
        let found = self.read().get(&handle).cloned();
        found.ok_or_else(|| Code::InvalidHandle.into())
    }

    /// Gives a handle up.
    pub fn remove(&self, handle: u64) -> Result<Arc<T>> {
        let found = self.write().remove(&handle);
        found.ok_or_else(|| Code::InvalidHandle.into())
    }

    /// Gives all handles up whose objects are such.
    pub fn remove_all(&self, mut such: impl FnMut(&T) -> bool) -> Vec<Arc<T>> {
        let mut removed = Vec::new();
        self.write().retain(|_, object| {
            let goes = such(object);
            if goes {
                removed.push(object.clone());
            }
            !goes
        });
        removed
    }

    /// All handles and objects.
    pub fn all(&self) -> Vec<(u64, Arc<T>)> {
        let objects = self.read();
        objects.iter().map(|(&h, o)| (h, o.clone())).collect()
    }

    fn read(&self) -> RwLockReadGuard<'_, HashMap<u64, Arc<T>>> {
        self.objects.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, HashMap<u64, Arc<T>>> {
        self.objects.write().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handle_leads_to_its_object_until_it_is_given_up() {
        let (numbers, texts) = (Handles::new(1), Handles::new(2));
        let one = numbers.add(Arc::new(1));
        let text = texts.add(Arc::new("text"));
        assert_eq!(numbers.get(one).as_deref(), Ok(&1));
        assert_eq!(numbers.get(text), Err(Code::InvalidHandle.into()));
        for wrong in [0, 1, u64::MAX, one + 1] {
            assert!(numbers.get(wrong).is_err());
        }
        numbers.remove(one).unwrap();
        assert!(numbers.get(one).is_err() && numbers.remove(one).is_err());
        assert_ne!(numbers.add(Arc::new(2)), one);
    }
}
