/** Shapes of replies that the page reads. */

export interface List<T> {
  object: 'list'
  data: T[]
  next?: string | null
}

export type Consent = 'off' | 'serve' | 'full'

export interface Me {
  name: string
  role: 'user' | 'developer' | 'admin' | 'auditor'
  via: 'loopback' | 'key' | 'session'
  csrf: string | null
  users_exist: boolean
}

export interface ConsentView {
  learning: Consent
  /** Whether a share of one's chats may be answered by the base model, to measure what learning does. */
  holdback: boolean
  explanation: string
  withdrawn_turns: number
}

export interface ToolCall {
  id?: string
  type?: string
  function?: { name?: string; arguments?: string }
}

export interface Message {
  role: string
  content: string | null
  tool_calls?: ToolCall[]
  tool_call_id?: string
}

export interface Fate {
  state: 'pending' | 'trained' | 'settled'
  stage: string | null
  version: number | null
  reason: string | null
  explanation: string
}

export interface Feedback {
  score: number | null
  comment: string | null
  correction: string | null
  received_ms: number
}

export interface HoneNote {
  turn_id: string
  session_id: string
  policy_version: number
  collected: boolean
  reason: string | null
  explanation: string | null
}

export interface SessionRow {
  id: string
  key: string | null
  title: string
  first_ms: number
  last_ms: number
  turns: number
}

export interface SessionTurn {
  turn_id: string
  parent_id: string | null
  messages: Message[]
  completion: string
  tool_calls?: ToolCall[]
  policy_version: number
  fate: Fate
  feedback: Feedback[]
  started_ms: number
}

export interface SessionView {
  id: string
  key: string | null
  title?: string
  turns: SessionTurn[]
  /** Where older turns begin. */
  next?: string | null
}

export interface Turn {
  id: string
  session_id: string
  parent_id: string | null
  kind: string
  choice_index: number
  policy_version: number
  policy_digest: string | null
  base_digest: string
  fingerprint: string
  sampling: Record<string, unknown>
  prompt_tokens: number
  completion_tokens: number
  completion: string
  stop: string
  started_ms: number
  finished_ms: number
  fate: Fate
  next_state: { kind: string; text: string }[]
  verdict: Verdict | null
  feedback: Feedback[]
}

export interface Vote {
  signal: string
  outcome: string
  reason: string | null
  model: string | null
  latency_ms: number
  words?: string | null
}

export interface Verdict {
  score: number | null
  decided_by: string | null
  hint: string | null
  votes: Vote[]
  judged_ms: number
}

export interface Version {
  version: number
  parent: number
  status: string
  digest: string | null
  samples: number
  mean_score: number | null
  scored_turns: number
  report: Record<string, unknown>
  gate: Record<string, unknown>
  published_ms: number
  pinned?: boolean
  provisional?: boolean
  tainted?: boolean
  tripped?: boolean
  pruned?: boolean
  note?: string | null
}

export interface Standing {
  pinned: boolean
  tripped: { note: string; version: number; at_ms: number } | null
  trial: { version: number; proven: number; since_ms: number } | null
}

export interface VersionList extends List<Version> {
  current: number
  standing?: Standing
}

export interface VersionDetail extends Version {
  lineage: number[]
  children: number[]
  /** The turns it learned from; `samples` counts them. */
  turns: Sample[]
}

export interface Learned {
  sentence: string
  turns: number
  judged: number
  trained: number
  versions: LearnedVersion[]
  waiting: Record<string, number>
}

export interface LearnedVersion {
  version: number
  published_ms: number
  samples: number
  score_before: number | null
  score_after: number | null
  tainted: boolean
  words: string
}

export interface Improvement {
  difference: number | null
  interval: [number, number] | null
  n_policy: number
  n_base: number
  smallest_detectable: number | null
  corrections_per_100: number | null
  corrections_per_100_base: number | null
  repeat_mistake_rate: number | null
  holdback_share: number
  per_version: { version: number; turns: number; sessions: number; mean_score: number; corrections_per_100: number }[]
  sentence: string
}

export interface ForgetPlan {
  /** None for a dry run. */
  id: string | null
  dry_run: boolean
  turns: number
  transitions: number
  samples: number
  versions_tainted: number[]
  rolls_back_to: number | null
  cannot_undo: string[]
  state: 'done' | 'running'
  turns_left: number
}

export interface Answered {
  text: string
  tokens: number
  stop: string
}

export interface Comparison {
  data: { messages: Message[]; a: Answered; b: Answered }[]
}

export interface Sample {
  turn_id: string
  score: number | null
  advantage?: number | null
}

export interface Limits {
  requests_per_minute?: number | null
  tokens_per_minute?: number | null
  tokens_per_day?: number | null
  streams_max?: number | null
}

export interface Key {
  id: string
  prefix: string
  name: string
  owner?: string
  role: string
  created_ms: number
  expires_ms: number | null
  used_ms: number | null
  revoked_ms?: number | null
  limits?: Limits
}

export interface NewKey {
  id: string
  prefix: string
  /** The secret; only in this reply. */
  key: string
}

// === The console ===

export interface LoopStatus {
  state: 'starting' | 'running' | 'paused' | 'restarting' | 'draining' | 'stopped'
  steps: number
  last_step_ms: number
  effects_in_flight: number
  queue_depth: number
  queue_limit: number
  queue_dropped: number
  restarts: number
  last_error: string | null
  numbers: Record<string, number>
}

export interface Alert {
  id: string
  severity: 'warn' | 'bad'
  since_ms: number
  text: string
  what_to_do: string
}

export interface Why {
  learning: 'yes' | 'soon' | 'no'
  sentence: string
  alerts: Alert[]
}

export interface EngineStatus {
  running: number
  waiting: number
  kv_blocks_used: number
  kv_blocks_total: number
  prompt_tokens_total: number
  cached_prompt_tokens_total: number
  completion_tokens_total: number
  requests_total: number
  failed_total: number
  cancelled_total: number
  swaps_total: number
  swap_failures_total: number
  adapters_resident: number
  token_gap_p99_us: number
  ttft_p50_us: number
}

export interface Status {
  version: string
  uptime_s: number
  draining: boolean
  model: {
    name: string
    backend: string
    can_train: boolean
    fingerprint: string
    base_digest: string
    max_positions: number
    vocab: number
  } | null
  engine: EngineStatus | null
  loops: Record<string, LoopStatus>
  ledger: { turns: number; pending: [string, number][]; trained: number; settled: [string, number][]; versions: number; refused: number } | null
  scopes_with_policy: number
  sessions: number
  completions_live: number
}

export interface SeriesReply {
  step_ms: number
  data: Record<string, [number, number | null][]>
}

export interface ScopeRow {
  scope: string
  owner: string
  user: string | null
  current: number
  pinned: boolean
  turns: number
  versions: number
  last_turn_ms: number | null
  mean_score: number | null
  canary?: unknown
  tripped: string | null
}

export interface Refusal {
  number?: number
  parent: number
  digest: string | null
  reason: string
  reasons?: string[]
  samples: number
  report: Record<string, unknown>
  refused_ms: number
}

export interface TurnLine {
  id: string
  session_id: string
  scope: string
  owner: string
  kind: string
  policy_version: number
  fate: Fate
  score: number | null
  preview: string
  started_ms: number
  finished_ms: number
}

export interface AdminTurn extends Turn {
  scope: string
  owner: string
  messages: Message[]
  tokens: { text: string; logprob: number; advantage: number | null }[] | null
  entered: { batch_id: string | null; version: number | null; refused: string | null; at_ms: number; report: Record<string, unknown> }[]
}

export interface User {
  name: string
  role: string
  disabled: boolean
  has_password: boolean
  /** A new one; only in the reply that made it. */
  password?: string
  limits: Limits
  created_ms: number
  signed_in_ms: number | null
}

export interface AuditRow {
  number: number
  at_ms: number
  actor: string
  act: string
  object: string
  detail: unknown
  hash: string
}

export interface ConfigRow {
  key: string
  value: unknown
  origin: string
  doc?: string
}
