//! Results of COI, and what went wrong in words.

use snapify_offload::OffloadError;
use std::cell::RefCell;
use std::ffi::{CStr, CString};

/// Defines the results with their names as C strings.
macro_rules! codes {
    ($($variant:ident $name:literal)*) => {
        /// What functions return (`COIRESULT`).
        #[repr(i32)]
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        #[allow(dead_code, reason = "all values that there are, whether or not they occur here")]
        pub enum Code {
            $($variant),*
        }

        /// Their names.
        const NAMES: &[&CStr] = &[$($name),*];
    };
}

codes! {
    Success c"COI_SUCCESS"
    Error c"COI_ERROR"
    NotInitialized c"COI_NOT_INITIALIZED"
    AlreadyInitialized c"COI_ALREADY_INITIALIZED"
    AlreadyExists c"COI_ALREADY_EXISTS"
    DoesNotExist c"COI_DOES_NOT_EXIST"
    InvalidPointer c"COI_INVALID_POINTER"
    OutOfRange c"COI_OUT_OF_RANGE"
    NotSupported c"COI_NOT_SUPPORTED"
    TimeOutReached c"COI_TIME_OUT_REACHED"
    MemoryOverlap c"COI_MEMORY_OVERLAP"
    ArgumentMismatch c"COI_ARGUMENT_MISMATCH"
    SizeMismatch c"COI_SIZE_MISMATCH"
    OutOfMemory c"COI_OUT_OF_MEMORY"
    InvalidHandle c"COI_INVALID_HANDLE"
    Retry c"COI_RETRY"
    ResourceExhausted c"COI_RESOURCE_EXHAUSTED"
    AlreadyLocked c"COI_ALREADY_LOCKED"
    NotLocked c"COI_NOT_LOCKED"
    MissingDependency c"COI_MISSING_DEPENDENCY"
    UndefinedSymbol c"COI_UNDEFINED_SYMBOL"
    Pending c"COI_PENDING"
    BinaryAndHardwareMismatch c"COI_BINARY_AND_HARDWARE_MISMATCH"
    ProcessDied c"COI_PROCESS_DIED"
    InvalidFile c"COI_INVALID_FILE"
    EventCanceled c"COI_EVENT_CANCELED"
    VersionMismatch c"COI_VERSION_MISMATCH"
    BadPort c"COI_BAD_PORT"
    AuthenticationFailure c"COI_AUTHENTICATION_FAILURE"
    CommNotInitialized c"COI_COMM_NOT_INITIALIZED"
    IncorrectFormat c"COI_INCORRECT_FORMAT"
}

/// The name of a result.
pub fn name(result: i32) -> &'static CStr {
    let name = usize::try_from(result)
        .ok()
        .and_then(|result| NAMES.get(result));
    name.copied().unwrap_or(c"(no COIRESULT)")
}

/// A function failed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Failure {
    /// What it returns.
    pub code: Code,
    /// Why, in words; may be empty.
    pub text: String,
}

/// The result of most functions here.
pub type Result<T, E = Failure> = std::result::Result<T, E>;

impl Failure {
    /// A failure with words.
    pub fn new(code: Code, text: impl Into<String>) -> Self {
        let text = text.into();
        Self { code, text }
    }
}

impl From<Code> for Failure {
    fn from(code: Code) -> Self {
        Self::new(code, "")
    }
}

impl From<OffloadError> for Failure {
    fn from(error: OffloadError) -> Self {
        let code = match &error {
            OffloadError::ProcessDied { .. } => Code::ProcessDied,
            OffloadError::OutOfMemory { .. } => Code::ResourceExhausted,
            OffloadError::NoSuchCard { .. } | OffloadError::BadAddress { .. } => Code::OutOfRange,
            OffloadError::Refused { .. } | OffloadError::System { .. } => Code::Error,
            OffloadError::Connection { .. } => Code::CommNotInitialized,
        };
        Self::new(code, error.to_string())
    }
}

thread_local! {
    static LAST: RefCell<CString> = RefCell::default();
}

/// Notes what went wrong in this thread's last call, for [`last`].
pub fn note(text: &str) {
    let text = CString::new(text.replace('\0', " ")).unwrap_or_default();
    // Fails only while the thread ends.
    let _ = LAST.try_with(|last| last.replace(text));
}

/// What went wrong in this thread's last call that failed; valid until the next.
pub fn last() -> *const std::ffi::c_char {
    LAST.try_with(|last| last.borrow().as_ptr())
        .unwrap_or(c"".as_ptr())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_have_their_names() {
        assert_eq!(NAMES.len(), 31);
        assert_eq!(name(Code::ProcessDied as i32), c"COI_PROCESS_DIED");
        assert_eq!(Code::ProcessDied as i32, 23);
        assert_eq!(name(Code::IncorrectFormat as i32), c"COI_INCORRECT_FORMAT");
        for wrong in [-1, 31, i32::MAX] {
            assert_eq!(name(wrong), c"(no COIRESULT)");
        }
    }
}
