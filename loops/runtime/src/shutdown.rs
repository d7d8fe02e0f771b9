//! The signal to stop, as a value that is handed in.

use tokio::sync::watch;

/// Says when to stop.
#[derive(Clone, Debug)]
pub struct Shutdown(watch::Receiver<bool>);

/// Makes everything stop.
#[derive(Clone, Debug)]
pub struct ShutdownTrigger(watch::Sender<bool>);

impl ShutdownTrigger {
    /// A trigger that was not pulled.
    #[expect(clippy::new_without_default, reason = "a trigger is made on purpose")]
    pub fn new() -> Self {
        Self(watch::Sender::new(false))
    }

    /// Begins the stop; again is the same.
    pub fn pull(&self) {
        self.0.send_replace(true);
    }

    /// A signal to hand in.
    pub fn signal(&self) -> Shutdown {
        Shutdown(self.0.subscribe())
    }
}

impl Shutdown {
    /// Whether the stop began.
    pub fn is_pulled(&self) -> bool {
        *self.0.borrow()
    }

    /// Waits for the stop. A trigger that is gone counts as pulled.
    pub async fn wait(&self) {
        let mut receiver = self.0.clone();
        // An error means that the trigger is gone, which is a stop as well.
        let _stopped = receiver.wait_for(|pulled| *pulled).await.is_ok();
    }
}
