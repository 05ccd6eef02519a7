//! Requests that write an object if there is none, one after the other.
//!
//! S3 looks and writes in one. The server of files looks, reads what comes, and writes then, so two
//! at the same time would both find nothing.

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};

use hyper::body::Incoming;
use hyper::service::Service;
use hyper::{Method, Request};
use s3s::service::S3Service;
use s3s::{HttpError, HttpResponse};
use tokio::sync::OwnedMutexGuard;

/// A lock for each object that somebody wanted to make.
#[derive(Debug, Default)]
pub(crate) struct Conditions {
    locks: Mutex<HashMap<String, Arc<tokio::sync::Mutex<()>>>>,
}

impl Conditions {
    /// Waits for this request's turn, which it has as long as it holds what this returns.
    async fn turn(&self, request: &Request<Incoming>) -> Option<OwnedMutexGuard<()>> {
        let is_any = request.headers().get("if-none-match").is_some_and(|value| value == "*");
        if request.method() != Method::PUT || !is_any {
            return None;
        }
        let lock = {
            let mut locks = self.locks.lock().unwrap_or_else(PoisonError::into_inner);
            Arc::clone(locks.entry(request.uri().path().to_owned()).or_default())
        };
        Some(lock.lock_owned().await)
    }
}

/// The server, with these turns.
#[derive(Clone)]
pub(crate) struct Conditional {
    service: S3Service,
    conditions: Arc<Conditions>,
}

impl Conditional {
    pub(crate) fn new(service: &S3Service, conditions: &Arc<Conditions>) -> Self {
        Self { service: service.clone(), conditions: Arc::clone(conditions) }
    }
}

impl Service<Request<Incoming>> for Conditional {
    type Response = HttpResponse;
    type Error = HttpError;
    type Future = Pin<Box<dyn Future<Output = Result<HttpResponse, HttpError>> + Send>>;

    fn call(&self, request: Request<Incoming>) -> Self::Future {
        let own = self.clone();
        Box::pin(async move {
            let _turn = own.conditions.turn(&request).await;
            Service::call(&own.service, request).await
        })
    }
}
