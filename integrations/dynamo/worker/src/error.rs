//! Who is to blame, in Dynamo's words: they decide whether a request is tried on another worker,
//! and whether this one is left alone for a while.

use dynamo_backend_common::{BackendError, DynamoError, ErrorType};
use reqwest::StatusCode;

/// A request that is wrong on every worker.
pub(crate) fn invalid(message: impl Into<String>) -> DynamoError {
    error(ErrorType::Backend(BackendError::InvalidArgument), message)
}

/// The server cannot be reached: the request goes to another worker, and the router leaves this
/// one alone.
pub(crate) fn gone(message: impl Into<String>) -> DynamoError {
    error(ErrorType::Backend(BackendError::EngineShutdown), message)
}

/// The answer broke off: another worker goes on with it.
pub(crate) fn broken(message: impl Into<String>) -> DynamoError {
    error(ErrorType::Backend(BackendError::StreamIncomplete), message)
}

/// What the server says of a request that it does not answer.
pub(crate) fn refused(status: StatusCode, message: impl Into<String>) -> DynamoError {
    let kind = match status.as_u16() {
        // Its queue is full, which the router has a word for.
        429 => ErrorType::WorkerOverloaded,
        // It loads, ends, or opens a lost device again: others can answer meanwhile.
        503 => ErrorType::Backend(BackendError::CannotConnect),
        // The worker's key is wrong, and no client can help it.
        401 | 403 => ErrorType::Backend(BackendError::Unknown),
        400..500 => ErrorType::Backend(BackendError::InvalidArgument),
        _ => ErrorType::Backend(BackendError::Unknown),
    };
    error(kind, message)
}

/// The same for an answer that failed on its way: its status was sent long before, and the kind of
/// the error says what it would be.
pub(crate) fn failed(kind: &str, message: impl Into<String>) -> DynamoError {
    let status = match kind {
        "invalid_request_error" | "not_found_error" => StatusCode::BAD_REQUEST,
        "rate_limit_error" => StatusCode::TOO_MANY_REQUESTS,
        "unavailable_error" => StatusCode::SERVICE_UNAVAILABLE,
        _ => StatusCode::INTERNAL_SERVER_ERROR,
    };
    refused(status, message)
}

fn error(kind: ErrorType, message: impl Into<String>) -> DynamoError {
    let message = message.into();
    // Dynamo shows a client this and nothing else. A fault of the program, or of the worker's key,
    // is for logs alone.
    let is_public = kind != ErrorType::Backend(BackendError::Unknown);
    let error = DynamoError::builder().error_type(kind).message(message.clone());
    if is_public { error.public_message(message).build() } else { error.build() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of_status(status: u16) -> ErrorType {
        refused(StatusCode::from_u16(status).unwrap(), "why").error_type()
    }

    #[test]
    fn a_status_says_who_is_to_blame() {
        let backend = ErrorType::Backend;
        assert_eq!(of_status(400), backend(BackendError::InvalidArgument));
        assert_eq!(of_status(413), backend(BackendError::InvalidArgument));
        assert_eq!(of_status(401), backend(BackendError::Unknown));
        assert_eq!(of_status(429), ErrorType::WorkerOverloaded);
        assert_eq!(of_status(503), backend(BackendError::CannotConnect));
        assert_eq!(of_status(500), backend(BackendError::Unknown));
        assert_eq!(of_status(507), backend(BackendError::Unknown));
    }

    #[test]
    fn an_error_in_a_stream_is_what_its_status_would_have_been() {
        let of_kind = |kind| failed(kind, "why").error_type();
        assert_eq!(of_kind("invalid_request_error"), of_status(400));
        assert_eq!(of_kind("unavailable_error"), of_status(503));
        assert_eq!(of_kind("server_error"), of_status(500));
    }

    #[test]
    fn clients_read_what_they_can_help() {
        assert_eq!(invalid("n: is not supported").public_message(), Some("n: is not supported"));
        assert_eq!(failed("unavailable_error", "lost").public_message(), Some("lost"));
        let fault = failed("server_error", "a fault");
        assert_eq!((fault.message(), fault.public_message()), ("a fault", None));
    }
}
