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
use object_store::{BackoffConfig, ClientConfigKey, ObjectStore, RetryConfig};

use super::error::ShareError;
use super::folder::Folder;
use super::http::Connector;
use super::storage::Storage;

/// What can be given.
const FORMS: &str = "give s3://BUCKET/PREFIX, gs://BUCKET/PREFIX, az://CONTAINER/PREFIX, \
                     file:///FOLDER or a folder";

/// How long a part of a session, of which eight come at the same time, or a text may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patience {
    /// One request.
    pub request: Duration,
    /// With those that are made again after failures: none begins later.
    pub in_all: Duration,
}

impl Default for Patience {
    fn default() -> Self {
        Self { request: Duration::from_secs(30), in_all: Duration::from_secs(60) }
    }
}

/// For what somebody waits for before it is known whether there is anything: lists, and what says
/// what there is.
const QUICK: Patience =
    Patience { request: Duration::from_secs(5), in_all: Duration::from_secs(6) };
/// How often a request is made again.
const QUICK_RETRIES: usize = 2;
const RETRIES: usize = 4;

/// Names and values of an environment.
pub(super) type Environment<'a> = &'a [(String, String)];

/// The same storage for short and for long requests.
pub(super) fn open(
    address: &str,
    environment: Environment<'_>,
    patience: Patience,
) -> Result<(Storage, Storage), ShareError> {
    let open = |patience, retries| storage(address, environment, patience, retries);
    Ok((open(QUICK, QUICK_RETRIES)?, open(patience, RETRIES)?))
}

fn storage(
    address: &str,
    environment: Environment<'_>,
    patience: Patience,
    max_retries: usize,
) -> Result<Storage, ShareError> {
    let wrong = |reason: String| ShareError::Address { address: address.to_owned(), reason };
    let refused = |error: object_store::Error| wrong(error.to_string());
    let connector = |variable| Connector { request: patience.request, variable };
    let retry = RetryConfig {
        backoff: BackoffConfig {
            init_backoff: Duration::from_millis(100),
            max_backoff: Duration::from_secs(5),
            base: 2.0,
        },
        max_retries,
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
            let builder = builder.with_http_connector(connector("AWS_ALLOW_HTTP"));
            Arc::new(builder.with_retry(retry).build().map_err(refused)?)
        }
        "gs" => {
            let builder = GoogleCloudStorageBuilder::new().with_bucket_name(bucket);
            // Alone of the three it allows that by itself. What tells a machine its own role is
            // asked all the same.
            let in_clear = GoogleConfigKey::Client(ClientConfigKey::AllowHttp);
            let builder = builder.with_config(in_clear, "false");
            let settings = settings::<GoogleConfigKey>(environment, "GOOGLE_");
            let builder = settings.fold(builder, |builder, (k, v)| builder.with_config(k, v));
            let builder = builder.with_http_connector(connector("GOOGLE_ALLOW_HTTP"));
            Arc::new(builder.with_retry(retry).build().map_err(refused)?)
        }
        "az" => {
            let builder = MicrosoftAzureBuilder::new().with_container_name(bucket);
            let settings = settings::<AzureConfigKey>(environment, "AZURE_");
            let builder = settings.fold(builder, |builder, (k, v)| builder.with_config(k, v));
            let builder = builder.with_http_connector(connector("AZURE_ALLOW_HTTP"));
            Arc::new(builder.with_retry(retry).build().map_err(refused)?)
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
    Ok(Storage::in_folder(Arc::new(store.with_fsync(true)), Folder::new(path)?))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_address_says_what_to_give() {
        for address in ["ftp://x/y", "s3:///prefix", "/there/is/no/such/folder", "gs://"] {
            let error = open(address, &[], Patience::default()).expect_err("refused").to_string();
            assert!(error.starts_with(address) && error.contains("s3://BUCKET"), "{error}");
        }
    }
}
