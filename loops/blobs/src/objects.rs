//! Blobs in an object store, so that several processes have the same ones.
//!
//! The files of a blob are objects named by their digests. A manifest that names them is put last and only where there is
//! none, so that a blob is either whole or absent, and the first of two decides. What is read is kept in a local cache,
//! which answers while the store is away.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::Arc;
use std::sync::mpsc::sync_channel;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use futures::TryStreamExt as _;
use hone_domain::{BlobError, BlobKey, Blobs, BlobsSize};
use object_store::aws::AmazonS3Builder;
use object_store::local::LocalFileSystem;
use object_store::path::Path;
use object_store::prefix::PrefixStore;
use object_store::{
    BackoffConfig, ClientOptions, Error, ObjectStore, ObjectStoreExt as _, PutMode, PutPayload,
    RetryConfig,
};
use tokio::runtime::Runtime;
use url::Url;

use crate::cache::Cache;
use crate::manifest::{Entry, Manifest, digest};
use crate::{check_files, check_name};

/// Where manifests and files lie below the prefix.
const MANIFESTS: &str = "manifests";
const FILES: &str = "files";
/// What a start writes to see that it may.
const PROBE: &str = "hone";
/// How long a request may take to find the store, and how often and long it is tried again.
const CONNECT: Duration = Duration::from_secs(5);
const TRIES: usize = 3;
const TRYING: Duration = Duration::from_secs(20);

/// Immutable folders in an object store, with a local cache.
pub struct ObjectBlobs {
    store: Arc<dyn ObjectStore>,
    /// Calls of [`Blobs`] block, those of the store do not. Always there until it is dropped.
    runtime: Option<Runtime>,
    cache: Cache,
    file_bytes_max: u64,
    shown: String,
}

impl Drop for ObjectBlobs {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

/// Opens what an address names: `s3://bucket/prefix`, with what AWS's programs read from the environment, or
/// `file:///folder`.
fn opened(address: &str) -> Result<Arc<dyn ObjectStore>, String> {
    let url =
        Url::parse(address).map_err(|_| "write s3://BUCKET/PREFIX or file:///FOLDER".to_owned())?;
    let prefix = Path::from_url_path(url.path()).map_err(|error| error.to_string())?;
    match url.scheme() {
        "s3" => {
            let bucket = url.host_str().filter(|name| !name.is_empty());
            let bucket = bucket.ok_or("it names no bucket; write s3://BUCKET/PREFIX")?;
            // The client looks for a default one; whoever set it first decides.
            let _set = rustls::crypto::ring::default_provider().install_default();
            let options = ClientOptions::new().with_connect_timeout(CONNECT);
            let retry = RetryConfig {
                backoff: BackoffConfig::default(),
                max_retries: TRIES,
                retry_timeout: TRYING,
            };
            let endpoint = endpoint()?;
            let store = AmazonS3Builder::from_env()
                .with_bucket_name(bucket)
                .with_client_options(options)
                // Only where somebody names such an endpoint.
                .with_allow_http(endpoint.starts_with("http://"))
                .with_retry(retry);
            let store = store.build().map_err(|error| error.to_string())?;
            Ok(Arc::new(PrefixStore::new(store, prefix)))
        }
        "file" => {
            let folder = url.to_file_path().map_err(|()| "write file:///FOLDER")?;
            std::fs::create_dir_all(&folder).map_err(|error| error.to_string())?;
            let store = LocalFileSystem::new_with_prefix(folder);
            let store = store.map_err(|error| error.to_string())?;
            Ok(Arc::new(store.with_fsync(true)))
        }
        other => Err(format!(
            "there is no store for {other}://; write s3://BUCKET/PREFIX or file:///FOLDER"
        )),
    }
}

/// The address of another S3 server than Amazon's, where the environment names one; empty where it does not.
fn endpoint() -> Result<String, String> {
    let name = "AWS_ENDPOINT_URL";
    let endpoint = std::env::var(name).unwrap_or_default();
    let is_web = |url: Url| ["http", "https"].contains(&url.scheme()) && url.has_host();
    match endpoint.is_empty() || Url::parse(&endpoint).is_ok_and(is_web) {
        true => Ok(endpoint),
        false => Err(format!(
            "{name} is {endpoint:?}; write http://HOST:PORT or https://HOST"
        )),
    }
}

/// What a store says to whoever may not use it, or to a wrong address; everything else may pass.
fn is_final(error: &Error) -> bool {
    matches!(
        error,
        Error::NotFound { .. }
            | Error::InvalidPath { .. }
            | Error::PermissionDenied { .. }
            | Error::Unauthenticated { .. }
            | Error::NotSupported { .. }
            | Error::NotImplemented { .. }
    )
}

impl ObjectBlobs {
    /// Opens a store; `cache` is a folder of this process alone, which holds at most `cache_bytes_max` bytes. No file may
    /// be larger than `file_bytes_max`.
    ///
    /// # Errors
    /// `Unusable`, with the address and what to do.
    pub fn open(
        address: &str,
        cache: &std::path::Path,
        cache_bytes_max: u64,
        file_bytes_max: u64,
    ) -> Result<Self, BlobError> {
        let advice = match address.starts_with("s3:") {
            true => {
                "correct it, or what AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_REGION and AWS_ENDPOINT_URL say"
            }
            false => "correct it, or make the folder writable for this user",
        };
        let unusable = |error: String| {
            BlobError::Unusable(format!(
                "store.objects {address} cannot be used ({error}); {advice}"
            ))
        };
        let store = opened(address).map_err(unusable)?;
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("hone-objects")
            .enable_all()
            .build()
            .map_err(|error| unusable(error.to_string()))?;
        let blobs = Self {
            store: store.clone(),
            runtime: Some(runtime),
            cache: Cache::open(cache, cache_bytes_max)?,
            file_bytes_max,
            shown: address.to_owned(),
        };
        let probe = async move {
            let path = Path::from(PROBE);
            store.put(&path, PutPayload::from_static(b"hone\n")).await?;
            store.get(&path).await?.bytes().await
        };
        match blobs.wait(probe) {
            Some(Ok(_)) => Ok(blobs),
            // What was fetched before can be served.
            Some(Err(error)) if !is_final(&error) && !blobs.cache.keys().is_empty() => {
                let error = first_line(&error);
                tracing::warn!(
                    error,
                    address,
                    "the object store is away; only local copies are served"
                );
                Ok(blobs)
            }
            Some(Err(Error::NotFound { .. })) => {
                Err(unusable("there is no such bucket".to_owned()))
            }
            Some(Err(error)) => Err(unusable(first_line(&error))),
            None => Err(unusable("its thread ended".to_owned())),
        }
    }

    /// Waits for the store, from whatever thread.
    fn wait<T: Send + 'static>(&self, work: impl Future<Output = T> + Send + 'static) -> Option<T> {
        let (done, waiting) = sync_channel(1);
        self.runtime.as_ref()?.spawn(async move {
            // Nobody waits any more where the receiver is gone.
            let _ = done.send(work.await);
        });
        waiting.recv().ok()
    }

    /// The same, with what failed as an error of a blob. None where there is no such object.
    fn ask<T: Send + 'static>(
        &self,
        key: &str,
        work: impl Future<Output = Result<T, Error>> + Send + 'static,
    ) -> Result<Option<T>, BlobError> {
        match self.wait(work) {
            Some(Ok(found)) => Ok(Some(found)),
            Some(Err(Error::NotFound { .. })) => Ok(None),
            Some(Err(error)) => Err(self.failed(key, &first_line(&error))),
            None => Err(self.failed(key, "its thread ended")),
        }
    }

    fn failed(&self, key: &str, what: &str) -> BlobError {
        BlobError::Io {
            key: key.to_owned(),
            message: format!("{} failed: {what}", self.shown),
        }
    }

    fn read(&self, key: &str, path: Path) -> Result<Option<Vec<u8>>, BlobError> {
        let (store, most) = (self.store.clone(), self.file_bytes_max);
        let read = async move {
            let found = store.get(&path).await?;
            match found.meta.size <= most {
                true => found.bytes().await.map(|bytes| Ok(bytes.to_vec())),
                false => Ok(Err(found.meta.size)),
            }
        };
        match self.ask(key, read)? {
            None => Ok(None),
            Some(Ok(bytes)) => Ok(Some(bytes)),
            Some(Err(has)) => Err(self.failed(
                key,
                &format!(
                    "an object has {has} bytes and at most {most} are allowed; raise the limit"
                ),
            )),
        }
    }

    /// The manifest of a key as the store has it.
    fn manifest(&self, key: &BlobKey) -> Result<Option<Manifest>, BlobError> {
        let Some(bytes) = self.read(key.as_str(), manifest_path(key))? else {
            return Ok(None);
        };
        let read = serde_json::from_slice(&bytes);
        read.map(Some).map_err(|error| {
            self.failed(
                key.as_str(),
                &format!("its manifest is unreadable: {error}"),
            )
        })
    }

    fn put_object(&self, key: &BlobKey, path: Path, bytes: Vec<u8>) -> Result<(), BlobError> {
        let store = self.store.clone();
        let put = async move { store.put(&path, PutPayload::from(bytes)).await.map(drop) };
        match self.ask(key.as_str(), put)? {
            Some(()) => Ok(()),
            None => Err(self.failed(key.as_str(), "there is no such bucket or folder")),
        }
    }

    /// Puts a manifest where there is none; false where there is one.
    fn put_manifest(&self, key: &BlobKey, manifest: &Manifest) -> Result<bool, BlobError> {
        let bytes = serde_json::to_vec(manifest)
            .map_err(|error| self.failed(key.as_str(), &error.to_string()))?;
        let (store, path) = (self.store.clone(), manifest_path(key));
        let put = async move {
            let put = store.put_opts(&path, PutPayload::from(bytes), PutMode::Create.into());
            match put.await {
                Ok(_) => Ok(true),
                Err(Error::AlreadyExists { .. } | Error::Precondition { .. }) => Ok(false),
                Err(error) => Err(error),
            }
        };
        let put = self.ask(key.as_str(), put)?;
        put.ok_or_else(|| self.failed(key.as_str(), "there is no such bucket or folder"))
    }

    /// Removes an object, where it is there.
    fn delete(&self, key: &BlobKey, path: Path) -> Result<(), BlobError> {
        let store = self.store.clone();
        let delete = async move { store.delete(&path).await };
        self.ask(key.as_str(), delete).map(drop)
    }

    /// Objects below a path, with the milliseconds since they were stored and their sizes.
    fn below(&self, key: &str, path: Path) -> Result<Vec<(Path, u64, u64)>, BlobError> {
        let store = self.store.clone();
        let list = async move { store.list(Some(&path)).try_collect::<Vec<_>>().await };
        let found = self.ask(key, list)?.unwrap_or_default();
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let now = now.map_or(0, |now| now.as_millis());
        let age = |stored_ms: i64| {
            let stored = u128::try_from(stored_ms).unwrap_or(0);
            u64::try_from(now.saturating_sub(stored)).unwrap_or(u64::MAX)
        };
        let rows = found.into_iter();
        Ok(rows
            .map(|meta| {
                (
                    meta.location,
                    age(meta.last_modified.timestamp_millis()),
                    meta.size,
                )
            })
            .collect())
    }

    /// Removes the files below a key.
    fn remove_files(&self, key: &BlobKey) -> Result<(), BlobError> {
        let path = Path::from(format!("{FILES}/{key}", key = key.as_str()));
        for (object, _, _) in self.below(key.as_str(), path)? {
            self.delete(key, object)?;
        }
        Ok(())
    }

    /// A file as the store has it, which is kept in the cache where it is what the manifest says.
    fn fetch(&self, key: &BlobKey, manifest: &Manifest, file: &str) -> Result<Vec<u8>, BlobError> {
        let missing = || BlobError::Missing {
            key: key.as_str().to_owned(),
            file: file.to_owned(),
        };
        let entry = manifest.files.get(file).ok_or_else(missing)?;
        let path = file_path(&manifest.folder, entry);
        let bytes = self.read(key.as_str(), path)?.ok_or_else(missing)?;
        match digest(&bytes) == entry.sha256 {
            true => self.cache.keep(key, manifest, [(file, &*bytes)]),
            // Whoever reads it has the digest of what was published, and decides.
            false => tracing::error!(blob = key.as_str(), file, "an object is damaged"),
        }
        Ok(bytes)
    }
}

fn manifest_path(key: &BlobKey) -> Path {
    Path::from(format!("{MANIFESTS}/{}.json", key.as_str()))
}

fn file_path(folder: &str, entry: &Entry) -> Path {
    Path::from(format!("{FILES}/{folder}/{}", entry.sha256))
}

/// The key in the path of a manifest or of a file of it.
fn key_of(path: &Path) -> Option<BlobKey> {
    let text = path.as_ref();
    let key = match text.strip_prefix(MANIFESTS) {
        Some(rest) => rest.strip_suffix(".json")?,
        None => text.strip_prefix(FILES)?.rsplit_once('/')?.0,
    };
    BlobKey::new(key.trim_start_matches('/')).ok()
}

/// What is to be told of an error: some have a page of it.
fn first_line(error: &Error) -> String {
    let mut text = error.to_string();
    let mut source = std::error::Error::source(error);
    while let Some(inner) = source {
        text = inner.to_string();
        source = inner.source();
    }
    let line = text.lines().next().unwrap_or_default();
    let line = line.split(": <").next().unwrap_or(line);
    line.chars().take(300).collect()
}

impl Blobs for ObjectBlobs {
    fn put(&self, key: &BlobKey, files: &[(String, Vec<u8>)]) -> Result<(), BlobError> {
        check_files(key, files, self.file_bytes_max)?;
        let manifest = Manifest::of(key, files);
        let exists = match self.manifest(key)? {
            Some(found) => Some(found),
            None => {
                for (name, bytes) in files {
                    let entry = &manifest.files[name];
                    self.put_object(key, file_path(key.as_str(), entry), bytes.clone())?;
                }
                match self.put_manifest(key, &manifest)? {
                    true => None,
                    false => self.manifest(key)?,
                }
            }
        };
        if exists.is_some_and(|found| found.files != manifest.files) {
            return Err(self.failed(
                key.as_str(),
                "it exists with other content, and blobs never change; use a new key",
            ));
        }
        let files = files.iter().map(|(name, bytes)| (&**name, &**bytes));
        self.cache.keep(key, &manifest, files);
        Ok(())
    }

    fn get(&self, key: &BlobKey, file: &str) -> Result<Vec<u8>, BlobError> {
        check_name(key, file)?;
        if let Some(bytes) = self.cache.get(key, file) {
            return Ok(bytes);
        }
        match self.manifest(key)? {
            Some(manifest) => self.fetch(key, &manifest, file),
            None => {
                self.cache.forget(key);
                Err(BlobError::Missing {
                    key: key.as_str().to_owned(),
                    file: file.to_owned(),
                })
            }
        }
    }

    fn list(&self, kind: &str) -> Result<Vec<(BlobKey, u64)>, BlobError> {
        let kind = BlobKey::new(kind)?;
        let mut found: BTreeMap<BlobKey, u64> = BTreeMap::new();
        // Files without a manifest are of a put that never ended.
        for above in [FILES, MANIFESTS] {
            let path = Path::from(format!("{above}/{}", kind.as_str()));
            for (path, age, _) in self.below(kind.as_str(), path)? {
                if let Some(key) = key_of(&path) {
                    let known = found.entry(key).or_insert(age);
                    *known = age.min(*known);
                }
            }
        }
        Ok(found.into_iter().collect())
    }

    fn remove(&self, key: &BlobKey) -> Result<(), BlobError> {
        let manifest = self.manifest(key)?;
        let folder = match &manifest {
            Some(manifest) => BlobKey::new(manifest.folder.clone())?,
            None => key.clone(),
        };
        self.delete(key, manifest_path(key))?;
        self.cache.forget(key);
        // A damaged one and a sound one of the same key have their files in one folder.
        let other = match folder == *key {
            true => key.aside(),
            false => folder.clone(),
        };
        match other != *key && self.manifest(&other)?.is_some() {
            true => Ok(()),
            false => self.remove_files(&folder),
        }
    }

    fn set_aside(&self, key: &BlobKey) -> Result<(), BlobError> {
        let Some(manifest) = self.manifest(key)? else {
            return Ok(());
        };
        let aside = key.aside();
        if aside == *key {
            return Ok(());
        }
        self.delete(&aside, manifest_path(&aside))?;
        self.put_manifest(&aside, &manifest)?;
        self.delete(key, manifest_path(key))?;
        self.cache.forget(key);
        Ok(())
    }

    fn has(&self, key: &BlobKey) -> Result<bool, BlobError> {
        Ok(self.manifest(key)?.is_some())
    }

    fn files(&self, key: &BlobKey) -> Result<Vec<String>, BlobError> {
        let manifest = self.manifest(key)?;
        Ok(manifest.map_or_else(Vec::new, |found| found.files.into_keys().collect()))
    }

    fn sizes(&self) -> Result<Vec<BlobsSize>, BlobError> {
        let mut kinds: BTreeMap<String, (u64, u64)> = BTreeMap::new();
        for (path, _, bytes) in self.below(FILES, Path::from(FILES))? {
            let kind = path.parts().nth(1).map(|part| part.as_ref().to_owned());
            let kind = kinds.entry(kind.unwrap_or_default()).or_default();
            *kind = (kind.0 + 1, kind.1 + bytes);
        }
        let rows = kinds.into_iter();
        Ok(rows
            .map(|(kind, (files, bytes))| BlobsSize { kind, files, bytes })
            .collect())
    }

    fn tidy(&self) -> Result<(), BlobError> {
        for key in self.cache.keys() {
            if self.manifest(&key)?.is_none() {
                self.cache.forget(&key);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
#[path = "objects_tests.rs"]
mod tests;
