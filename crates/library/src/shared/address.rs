//! From an address to a storage.

use std::path::Path;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};
use object_store::azure::{AzureConfigKey, MicrosoftAzureBuilder};
use object_store::gcp::{GoogleCloudStorageBuilder, GoogleConfigKey};
use object_store::local::LocalFileSystem;
use object_store::path::Path as Name;
use object_store::{BackoffConfig, ObjectStore, RetryConfig};
use ureq::http::Uri;

use super::error::ShareError;
use super::http::Connector;
use super::storage::Storage;
use crate::origin::Origin;

/// What can be given.
const FORMS: &str = "give s3://BUCKET/PREFIX, gs://BUCKET/PREFIX, az://CONTAINER/PREFIX, \
                     file:///FOLDER or a folder";

/// How long one request may take, and how long it is tried again after failures.
#[derive(Clone, Copy)]
struct Patience {
    request: Duration,
    retries: usize,
    in_all: Duration,
    max_answer: u64,
}

/// For what somebody waits for before it is known whether there is anything: lists, and what says
/// what there is. (A session of 128 GB has a megabyte of hashes.)
const QUICK: Patience = Patience {
    request: Duration::from_secs(5),
    retries: 2,
    in_all: Duration::from_secs(6),
    max_answer: 16 << 20,
};
/// For a part of a session, of which eight come at the same time, and for texts.
const PATIENT: Patience = Patience {
    request: Duration::from_secs(30),
    retries: 4,
    in_all: Duration::from_secs(60),
    max_answer: 256 << 20,
};

/// Names and values of an environment.
pub(super) type Environment<'a> = &'a [(String, String)];

/// The same storage for short and for long requests.
pub(super) fn open(
    address: &str,
    environment: Environment<'_>,
) -> Result<(Storage, Storage), ShareError> {
    let open = |patience| storage(address, environment, patience);
    Ok((open(QUICK)?, open(PATIENT)?))
}

fn storage(
    address: &str,
    environment: Environment<'_>,
    patience: Patience,
) -> Result<Storage, ShareError> {
    let wrong = |reason: String| ShareError::Address { address: address.to_owned(), reason };
    let refused = |error: object_store::Error| wrong(error.to_string());
    let connector = Connector { request: patience.request, max_answer: patience.max_answer };
    let retry = RetryConfig {
        backoff: BackoffConfig {
            init_backoff: Duration::from_millis(100),
            max_backoff: Duration::from_secs(5),
            base: 2.0,
        },
        max_retries: patience.retries,
        retry_timeout: patience.in_all,
    };
    let Some((scheme, rest)) = address.split_once("://") else {
        return folder(Path::new(address), address);
    };
    let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
    if bucket.is_empty() && scheme != "file" {
        return Err(wrong(format!("names no bucket; {FORMS}")));
    }
    let store: Arc<dyn ObjectStore> = match scheme {
        "file" => return folder(Path::new(rest), address),
        "s3" => {
            let builder = AmazonS3Builder::new().with_bucket_name(bucket);
            let settings = settings::<AmazonS3ConfigKey>(environment, "AWS_");
            let builder = settings.fold(builder, |builder, (k, v)| builder.with_config(k, v));
            let endpoint = builder
                .get_config_value(&AmazonS3ConfigKey::S3Endpoint)
                .or_else(|| builder.get_config_value(&AmazonS3ConfigKey::Endpoint));
            let mut builder = builder.with_http_connector(connector).with_retry(retry);
            // To this machine itself nobody reads along.
            if endpoint.is_some_and(|endpoint| is_loopback(&endpoint)) {
                builder = builder.with_allow_http(true);
            }
            Arc::new(builder.build().map_err(refused)?)
        }
        "gs" => {
            let builder = GoogleCloudStorageBuilder::new().with_bucket_name(bucket);
            let settings = settings::<GoogleConfigKey>(environment, "GOOGLE_");
            let builder = settings.fold(builder, |builder, (k, v)| builder.with_config(k, v));
            let builder = builder.with_http_connector(connector).with_retry(retry);
            Arc::new(builder.build().map_err(refused)?)
        }
        "az" => {
            let builder = MicrosoftAzureBuilder::new().with_container_name(bucket);
            let settings = settings::<AzureConfigKey>(environment, "AZURE_");
            let builder = settings.fold(builder, |builder, (k, v)| builder.with_config(k, v));
            let builder = builder.with_http_connector(connector).with_retry(retry);
            Arc::new(builder.build().map_err(refused)?)
        }
        _ => return Err(wrong(format!("is no address of a storage; {FORMS}"))),
    };
    let root =
        Name::parse(prefix.trim_end_matches('/')).map_err(|error| wrong(error.to_string()))?;
    Ok(Storage::new(store, root))
}

fn folder(path: &Path, address: &str) -> Result<Storage, ShareError> {
    let wrong = |reason: String| ShareError::Address { address: address.to_owned(), reason };
    if !path.is_dir() {
        return Err(wrong(format!("is no folder; make it, or {FORMS}")));
    }
    let store = LocalFileSystem::new_with_prefix(path).map_err(|error| wrong(error.to_string()))?;
    Ok(Storage::new(Arc::new(store.with_fsync(true)), Name::default()))
}

/// What the environment says about a provider, under the names of its own programs. (The builders
/// read the environment themselves as well, but only that of this process.)
fn settings<'a, K: FromStr>(
    environment: Environment<'a>,
    prefix: &'a str,
) -> impl Iterator<Item = (K, &'a str)> {
    let own = environment.iter().filter(move |(name, _)| name.starts_with(prefix));
    own.filter_map(|(name, value)| Some((name.to_ascii_lowercase().parse().ok()?, &**value)))
}

fn is_loopback(endpoint: &str) -> bool {
    let uri = endpoint.parse::<Uri>().ok();
    uri.and_then(|uri| Origin::of(&uri)).is_some_and(|origin| origin.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_address_says_what_to_give() {
        for address in ["ftp://x/y", "s3:///prefix", "/there/is/no/such/folder", "gs://"] {
            let error = open(address, &[]).expect_err("refused").to_string();
            assert!(error.starts_with(address) && error.contains("s3://BUCKET"), "{error}");
        }
    }
}
