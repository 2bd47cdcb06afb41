//! `process.json`, the description of a process tree: what passes the checks before a restart can be asked everything.
#![no_main]

use libfuzzer_sys::fuzz_target;
use snapify_proc::TreeImage;

fuzz_target!(|data: &[u8]| {
    let Ok(image) = serde_json::from_slice::<TreeImage>(data) else {
        return;
    };
    if image.validate().is_ok() {
        let _ = (image.saved_bytes(), image.private_bytes(), image.root());
        let text = serde_json::to_vec(&image).expect("it can be written");
        let again: TreeImage = serde_json::from_slice(&text).expect("and read again");
        assert!(again.validate().is_ok());
    }
});
