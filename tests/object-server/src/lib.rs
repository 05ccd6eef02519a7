//! A real S3 server on this machine, over a folder, and between it and its clients a network that
//! fails on purpose. For tests.

mod conditions;
mod proxy;

pub use self::proxy::{Fault, Proxy};

use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};

use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto::Builder as Connections;
use s3s::auth::{S3Auth, SecretKey};
use s3s::service::S3ServiceBuilder;
use s3s::{S3Result, s3_error};
use s3s_fs::FileSystem;
use tokio::net::TcpListener;
use tokio::runtime::Builder;
use tokio::sync::oneshot;

use self::conditions::{Conditional, Conditions};

/// The bucket that there is.
pub const BUCKET: &str = "documents";
/// Who may read and write it.
const ACCESS_KEY: &str = "AKTESTOFLONGVIEW";
const SECRET_KEY: &str = "a secret that only tests know";

/// A server with one empty bucket. Dropped, it is gone with all that is in it.
#[derive(Debug)]
pub struct ObjectServer {
    address: SocketAddr,
    folder: PathBuf,
    is_expired: Arc<AtomicBool>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl ObjectServer {
    /// Starts one on a free port.
    ///
    /// # Errors
    /// What the system says.
    pub fn start() -> io::Result<Self> {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let n = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("longview-objects-{}-{n}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        std::fs::create_dir_all(folder.join(BUCKET))?;
        let is_expired = Arc::new(AtomicBool::new(false));
        let mut service = S3ServiceBuilder::new(
            FileSystem::new(&folder).map_err(|e| io::Error::other(format!("{e:?}")))?,
        );
        service.set_auth(Auth { is_expired: Arc::clone(&is_expired) });
        let (service, conditions) = (service.build(), Arc::new(Conditions::default()));
        let runtime = Builder::new_current_thread().enable_io().enable_time().build()?;
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0"))?;
        let address = listener.local_addr()?;
        let (stop, mut stopped) = oneshot::channel();
        let thread = thread::Builder::new().name("objects".to_owned()).spawn(move || {
            runtime.block_on(async {
                let accept = async {
                    while let Ok((socket, _)) = listener.accept().await {
                        let service = Conditional::new(&service, &conditions);
                        tokio::spawn(async move {
                            let server = Connections::new(TokioExecutor::new());
                            let _ = server.serve_connection(TokioIo::new(socket), service).await;
                        });
                    }
                };
                let mut accept = std::pin::pin!(accept);
                std::future::poll_fn(|cx| {
                    use std::future::Future;
                    if std::pin::Pin::new(&mut stopped).poll(cx).is_ready() {
                        return std::task::Poll::Ready(());
                    }
                    accept.as_mut().poll(cx)
                })
                .await;
            });
        })?;
        Ok(Self { address, folder, is_expired, stop: Some(stop), thread: Some(thread) })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The files of its bucket.
    pub fn folder(&self) -> PathBuf {
        self.folder.join(BUCKET)
    }

    /// Says from now on that credentials have expired, or no longer.
    pub fn set_expired(&self, is_expired: bool) {
        self.is_expired.store(is_expired, Ordering::Relaxed);
    }

    /// What a program finds in its environment that reaches the server at `address`: its own, or
    /// that of a [`Proxy`].
    pub fn environment(address: SocketAddr) -> Vec<(String, String)> {
        let set = [
            ("AWS_ENDPOINT_URL", format!("http://{address}")),
            ("AWS_ACCESS_KEY_ID", ACCESS_KEY.to_owned()),
            ("AWS_SECRET_ACCESS_KEY", SECRET_KEY.to_owned()),
            ("AWS_REGION", "us-east-1".to_owned()),
        ];
        set.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
    }
}

impl Drop for ObjectServer {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// Files below a folder.
pub fn files_below(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() {
            found.extend(files_below(&path));
        } else {
            found.push(path);
        }
    }
    found
}

struct Auth {
    is_expired: Arc<AtomicBool>,
}

#[async_trait::async_trait]
impl S3Auth for Auth {
    async fn get_secret_key(&self, access_key: &str) -> S3Result<SecretKey> {
        if self.is_expired.load(Ordering::Relaxed) {
            return Err(s3_error!(ExpiredToken, "The provided token has expired."));
        }
        if access_key != ACCESS_KEY {
            return Err(s3_error!(InvalidAccessKeyId));
        }
        Ok(SecretKey::from(SECRET_KEY))
    }
}
