//! Client of the attestor socket, through which the agent of the same machine gives the master
//! access to the TPM.
//!
//! Each connection carries one request and one answer, each a line of JSON. Calls block, with time
//! limits; they happen at start, at the bootstrap and when keys change, on a blocking thread.

use config_protocol::attestor::{
    MAX_LINE, Refused, Request, SealAnswer, StatusAnswer, UnsealAnswer,
};
use config_protocol::wire::Blob;
use serde::de::DeserializeOwned;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Time limit of one answer. A TPM takes seconds for some commands, an emulated one longer.
const ANSWER_TIME: Duration = Duration::from_secs(60);
/// Pause between two attempts to connect at start.
const RETRY: Duration = Duration::from_millis(200);

/// Why the attestor did not answer as asked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AttestorError {
    /// The socket cannot be reached or broke.
    #[error("the attestor socket {} does not answer", path.display())]
    Socket {
        /// The socket.
        path: PathBuf,
        /// The cause.
        #[source]
        source: std::io::Error,
    },
    /// The answer cannot be parsed as one to this operation.
    #[error("the attestor's answer to `{op}` is not understood: {why}")]
    Answer {
        /// The operation.
        op: &'static str,
        /// What is wrong.
        why: String,
    },
    /// The attestor refused the operation.
    #[error("the attestor refused `{op}`: {code}: {message}")]
    Refused {
        /// The operation.
        op: &'static str,
        /// Its code.
        code: String,
        /// Its message.
        message: String,
    },
}

/// A client of the attestor socket.
#[derive(Debug, Clone)]
pub struct Attestor {
    path: PathBuf,
}

impl Attestor {
    /// Names the socket; nothing is opened yet.
    pub fn new(path: &Path) -> Self {
        Self {
            path: path.to_owned(),
        }
    }

    /// Waits until the socket accepts a connection, at most `limit`: at boot agent and master start
    /// at the same time.
    ///
    /// # Errors
    /// The socket did not accept one in time.
    pub fn wait(&self, limit: Duration) -> Result<(), AttestorError> {
        let start = Instant::now();
        loop {
            match UnixStream::connect(&self.path) {
                Ok(_stream) => return Ok(()),
                Err(source) if start.elapsed() >= limit => {
                    return Err(AttestorError::Socket {
                        path: self.path.clone(),
                        source,
                    });
                }
                Err(_) => std::thread::sleep(RETRY),
            }
        }
    }

    /// Sends one request and reads its answer.
    ///
    /// # Errors
    /// The socket cannot be reached, breaks or takes too long; the attestor refuses; the answer
    /// cannot be parsed.
    pub fn call<T: DeserializeOwned>(&self, request: &Request) -> Result<T, AttestorError> {
        let op = request.op();
        let mut line = serde_json::to_vec(request).map_err(|e| answer(op, &e))?;
        line.push(b'\n');
        let text = self
            .exchange(&line)
            .map_err(|source| AttestorError::Socket {
                path: self.path.clone(),
                source,
            })?;
        if let Ok(Refused { error }) = serde_json::from_str(&text) {
            return Err(AttestorError::Refused {
                op,
                code: error.code,
                message: error.message,
            });
        }
        serde_json::from_str(&text).map_err(|e| answer(op, &e))
    }

    /// The lowest image version that can open what is sealed now; `None` if any boot on this
    /// machine can.
    ///
    /// # Errors
    /// The agent beside the master cannot be reached, or its TPM failed.
    pub fn floor(&self) -> Result<Option<u64>, AttestorError> {
        let StatusAnswer { floor, .. } = self.call(&Request::Status)?;
        Ok(floor)
    }

    /// Seals a secret (at most 16 KiB) to this machine's TPM.
    ///
    /// # Errors
    /// The secret is too long, or as [`Attestor::call`].
    pub fn seal(&self, secret: &[u8]) -> Result<Vec<u8>, AttestorError> {
        let data = Blob::new(secret).map_err(|e| answer("seal", &e))?;
        let SealAnswer { sealed } = self.call(&Request::Seal { data })?;
        Ok(sealed.as_bytes().to_vec())
    }

    /// Unseals what [`Attestor::seal`] returned on this machine.
    ///
    /// # Errors
    /// The sealed data is too long, or as [`Attestor::call`].
    pub fn unseal(&self, sealed: &[u8]) -> Result<Vec<u8>, AttestorError> {
        self.open(sealed, false)
    }

    /// Unseals data that was sealed before there were boot policies.
    ///
    /// # Errors
    /// The agent beside the master cannot be reached, its TPM failed, or the TPM does not open what
    /// was sealed.
    pub fn unseal_unbound(&self, sealed: &[u8]) -> Result<Vec<u8>, AttestorError> {
        self.open(sealed, true)
    }

    fn open(&self, sealed: &[u8], unbound: bool) -> Result<Vec<u8>, AttestorError> {
        let sealed = Blob::new(sealed).map_err(|e| answer("unseal", &e))?;
        let UnsealAnswer { data } = self.call(&Request::Unseal { sealed, unbound })?;
        Ok(data.as_bytes().to_vec())
    }

    fn exchange(&self, line: &[u8]) -> std::io::Result<String> {
        let mut stream = UnixStream::connect(&self.path)?;
        stream.set_read_timeout(Some(ANSWER_TIME))?;
        stream.set_write_timeout(Some(ANSWER_TIME))?;
        stream.write_all(line)?;
        let mut text = String::new();
        BufReader::new(stream.take(MAX_LINE as u64)).read_line(&mut text)?;
        Ok(text)
    }
}

fn answer(op: &'static str, why: &impl std::fmt::Display) -> AttestorError {
    AttestorError::Answer {
        op,
        why: why.to_string(),
    }
}
