/** Berth workspaces as sandboxes of opencode's sandbox module. */

import { execFile } from "node:child_process"
import { randomUUID } from "node:crypto"
import { setTimeout as sleep } from "node:timers/promises"
import { isDeepStrictEqual } from "node:util"
import { BerthError, Client, type Json, LostError, isObject, now, place } from "./client.js"
import { run, type Outcome } from "./commands.js"
import {
  type Config,
  type Errors,
  type ExecOptions,
  type ExecResult,
  type FileInfo,
  type Info,
  type Instance,
  type Provider,
  type Snapshot,
  type Status,
  ownErrors,
} from "./contract.js"
import { FileTooLarge, FileTrouble, Files, ROOT, shown } from "./files.js"
import { type Address, ConfigurationError, addressFromEnvironment, transportOf } from "./transport.js"

export interface BerthOptions extends Partial<Address> {
  /** What `Provider.type` says. The proposal's own enum has "local", "modal" and "kubernetes"; "local" would have opencode
   * read files of this machine. */
  type?: string
  /** berth-policy(5), for new sandboxes. Without it the service's own counts. */
  policy?: Json
  /** Seconds that a sandbox lives, where its config does not say. Without one it lives until it is terminated. */
  ttl?: number
  /** Bytes of each stream of a command that are told: its last. */
  outputMax?: number
  /** Bytes of a file that are read; a larger one is refused, with its size. */
  readMax?: number
  /** Milliseconds that a command has, where its caller does not say. 0: without end. */
  execTimeout?: number
  /** The policy is read before and after each command, and must be what it was. */
  checkPolicy?: boolean
  /** opencode's namespace Sandbox, whose error classes are thrown then. */
  errors?: Errors
  /** The program `berth`, for sandboxes that begin as a git worktree (gitRepo). */
  berth?: string
}

const LABEL = "opencode.sandbox"
const PROJECT = "opencode.project"
const SESSION = "opencode.session"
const NAME = "opencode.name"
const WORKDIR = "opencode.workdir"
const ENVIRONMENT = "opencode.env"
const ENVIRONMENT_MAX = 12 << 10
/** One word of an execve, with its NUL. */
const WORD_MAX = (128 << 10) - 1
const OUTPUT_MAX = 1 << 20
const READ_MAX = 64 << 20
const EXEC_TIMEOUT = 600_000
const CLI_TIMEOUT = 600_000

interface Shared {
  client: Client
  options: BerthOptions
  errors: Errors
  type: string
}

function fail(shared: Shared, kind: keyof Errors, data: { message: string; [key: string]: unknown }, cause?: unknown): Error {
  return new shared.errors[kind]({ provider: shared.type, ...data } as never, cause === undefined ? undefined : { cause })
}

function message(error: unknown): string {
  return error instanceof Error ? error.message : String(error)
}

export class BerthProvider implements Provider {
  readonly type: string
  private readonly shared: Shared

  /** Connects to nothing yet. */
  constructor(options: BerthOptions = {}) {
    const { url, token, tokenFile, caFile, certFile, keyFile } = options
    const address = url === undefined ? addressFromEnvironment() : { url, token, tokenFile, caFile, certFile, keyFile }
    this.type = options.type ?? "berth"
    this.shared = {
      client: new Client(transportOf(address)),
      options,
      errors: options.errors ?? ownErrors,
      type: this.type,
    }
  }

  /** Ends connections that nobody uses. */
  close(): void {
    this.shared.client.close()
  }

  /** A new sandbox; or, of an ID or a session that has one, that one, started if it was stopped. Of several that ask at
   * once all get the same. */
  async create(config: Config): Promise<Instance> {
    return this.make(config, undefined)
  }

  private async make(config: Config, snapshotId: string | undefined): Promise<Instance> {
    const id = config.id ?? config.sessionId ?? `opencode-${randomUUID()}`
    let made = false
    try {
      const request = this.requestOf(id, config, snapshotId)
      made = config.gitRepo === undefined ? await this.post(request) : await this.checkOut(id, config, request)
      const instance = await this.adopt(id, config)
      await instance.begin(made ? config : {})
      return instance
    } catch (error) {
      // Nothing weaker than what was asked for is left behind.
      if (made) await this.shared.client.ask("DELETE", place(id), { query: { force: "1" }, repeat: true }).catch(() => 0)
      if (snapshotId !== undefined && error instanceof BerthError && error.status === 404)
        throw fail(this.shared, "SnapshotError", { message: `there is no snapshot ${shown(snapshotId)}`, snapshotId }, error)
      if (error instanceof BerthError || error instanceof FileTrouble || error instanceof ConfigurationError)
        throw fail(this.shared, "CreateError", { message: error.message, id }, error)
      throw error
    }
  }

  private requestOf(id: string, config: Config, snapshotId: string | undefined): Json {
    const refuse = (text: string) => fail(this.shared, "CreateError", { message: text, id })
    if (config.image !== undefined)
      throw refuse("a workspace has no image of its own: its commands see the service's system (see the providers of berth create)")
    if (snapshotId !== undefined && config.gitRepo !== undefined) throw refuse("a sandbox begins as a snapshot, or as a git worktree")
    const policy: Json = { ...this.shared.options.policy }
    const limits: Json = { ...(isObject(policy["limits"]) ? policy["limits"] : {}) }
    for (const [name, value, factor] of [["cpu", config.cpu, 1], ["memory", config.memory, 1 << 20]] as const) {
      if (value === undefined) continue
      if (!(value > 0) || !Number.isFinite(value)) throw refuse(`${name} is a positive number, not ${value}`)
      limits[name] = value * factor
    }
    if (Object.keys(limits).length > 0) policy["limits"] = limits
    const labels: Record<string, string> = { [LABEL]: "1", "created-by": "opencode", "created-at": String(Math.floor(Date.now() / 1000)) }
    if (config.projectId !== undefined) labels[PROJECT] = config.projectId
    if (config.sessionId !== undefined) labels[SESSION] = config.sessionId
    if (config.name !== undefined) labels[NAME] = config.name
    if (config.workdir !== undefined) labels[WORKDIR] = config.workdir
    const env = JSON.stringify(this.environmentOf(config.env ?? {}, refuse))
    if (env !== "{}") labels[ENVIRONMENT] = env
    const ttl = config.timeout ?? this.shared.options.ttl
    return {
      id,
      labels,
      ...(ttl === undefined ? {} : { ttl }),
      ...(Object.keys(policy).length === 0 ? {} : { policy }),
      ...(snapshotId === undefined ? {} : { source: { snapshot: snapshotId } }),
    }
  }

  private environmentOf(env: Record<string, string>, refuse: (text: string) => Error): Record<string, string> {
    checkEnvironment(env, refuse)
    const size = Buffer.byteLength(JSON.stringify(env))
    if (size > ENVIRONMENT_MAX) throw refuse(`env takes ${size} bytes as JSON; at most ${ENVIRONMENT_MAX} can be kept`)
    return env
  }

  /** Whether this very request has made it. */
  private async post(request: Json): Promise<boolean> {
    try {
      return (await this.shared.client.ask("POST", "/v1/workspaces", { json: request })).status === 201
    } catch (error) {
      // There is one already, or there may be: which it is, adopt finds out.
      const there = error instanceof BerthError && error.status === 409 && error.errno === "EEXIST"
      if (!there && !(error instanceof LostError && this.shared.client.mayReturn)) throw error
      return false
    }
  }

  /** By `berth`, which reads the repository here. */
  private async checkOut(id: string, config: Config, request: Json): Promise<boolean> {
    const words = ["create", "--exclusive"]
    for (const [key, value] of Object.entries(request["labels"] as Record<string, string>)) words.push("--label", `${key}=${value}`)
    if (request["ttl"] !== undefined) words.push("--ttl", `${String(request["ttl"])}s`)
    if (request["policy"] !== undefined) words.push("--policy", "-")
    const branch = config.gitBranch === undefined ? "" : `@${config.gitBranch}`
    words.push("--worktree", `${config.gitRepo}${branch}`, "--", id)
    const { url, token, tokenFile, caFile, certFile, keyFile, berth } = this.shared.options
    const given = { BERTH_URL: url, BERTH_TOKEN: token, BERTH_TOKEN_FILE: tokenFile, BERTH_CA_FILE: caFile, BERTH_CERT_FILE: certFile, BERTH_KEY_FILE: keyFile }
    const env = { ...process.env }
    for (const [name, value] of Object.entries(given)) if (value !== undefined) env[name] = value
    return new Promise((resolve, reject) => {
      const child = execFile(berth ?? "berth", words, { env, timeout: CLI_TIMEOUT, encoding: "utf8" }, (error, _, stderr) => {
        if (error === null) resolve(true)
        else reject(fail(this.shared, "CreateError", { message: stderr.trim() || message(error), id }, error))
      })
      child.stdin?.on("error", () => undefined)
      child.stdin?.end(request["policy"] === undefined ? "" : JSON.stringify(request["policy"]))
    })
  }

  /** The sandbox of this ID, which must be of the same session and project. */
  private async adopt(id: string, config: Config): Promise<BerthInstance> {
    const { client } = this.shared
    let workspace = await client.document("GET", place(id), { repeat: true })
    const labels = labelsOf(workspace)
    const same = (label: string, value: string | undefined) => value === undefined || labels[label] === value
    if (labels[LABEL] === undefined || !same(SESSION, config.sessionId) || !same(PROJECT, config.projectId))
      throw fail(this.shared, "CreateError", { message: `there is a workspace ${shown(id)} already, of somebody else`, id })
    if (workspace["state"] === "stopped") workspace = await client.document("POST", place(id, "/start"), { repeat: true })
    return new BerthInstance(this.shared, this.infoOf(workspace))
  }

  private infoOf(workspace: Json): Info {
    const labels = labelsOf(workspace)
    const id = String(workspace["id"])
    const optional = {
      ...(labels[PROJECT] === undefined ? {} : { projectId: labels[PROJECT] }),
      ...(labels[SESSION] === undefined ? {} : { sessionId: labels[SESSION] }),
      ...(typeof workspace["used_at"] === "string" ? { lastActivityAt: workspace["used_at"] } : {}),
    }
    return {
      id,
      name: labels[NAME] ?? String(workspace["name"]),
      status: workspace["state"] === "stopped" ? "stopped" : "running",
      provider: this.type,
      workdir: labels[WORKDIR] ?? ROOT,
      createdAt: String(workspace["created_at"] ?? new Date(0).toISOString()),
      ...optional,
      metadata: { url: this.shared.client.url, directory: workspace["name"], expiresAt: workspace["expires_at"] ?? null, env: labels[ENVIRONMENT] ?? "{}" },
    }
  }

  async get(id: string): Promise<Instance | undefined> {
    return this.told("ProviderError", async () => {
      try {
        const workspace = await this.shared.client.document("GET", place(id), { repeat: true })
        return labelsOf(workspace)[LABEL] === undefined ? undefined : new BerthInstance(this.shared, this.infoOf(workspace))
      } catch (error) {
        if (error instanceof BerthError && error.status === 404) return undefined
        throw error
      }
    })
  }

  async list(filter: { projectId?: string; sessionId?: string; status?: Status } = {}): Promise<Info[]> {
    if (filter.status !== undefined && filter.status !== "running" && filter.status !== "stopped") return []
    const labels = [LABEL]
    if (filter.projectId !== undefined) labels.push(`${PROJECT}=${filter.projectId}`)
    if (filter.sessionId !== undefined) labels.push(`${SESSION}=${filter.sessionId}`)
    const query = new URLSearchParams(labels.map((label): [string, string] => ["label", label]))
    if (filter.status !== undefined) query.set("state", filter.status)
    return this.told("ProviderError", async () => {
      const found = await this.pages(`/v1/workspaces`, query, "workspaces")
      return found.map((workspace) => this.infoOf(workspace))
    })
  }

  private async pages(path: string, query: URLSearchParams, member: string): Promise<Json[]> {
    const found: Json[] = []
    for (;;) {
      const document = await this.shared.client.document("GET", `${path}?${query}`, { repeat: true })
      found.push(...(document[member] as Json[]))
      if (typeof document["next"] !== "string") return found
      query.set("after", document["next"])
    }
  }

  async terminate(id: string): Promise<void> {
    const instance = await this.get(id)
    if (instance === undefined) throw fail(this.shared, "NotFoundError", { id, message: `there is no sandbox ${shown(id)}` })
    await instance.terminate()
  }

  async terminateAll(filter: { projectId?: string; sessionId?: string } = {}): Promise<number> {
    const results = await Promise.allSettled((await this.list(filter)).map((info) => this.terminate(info.id)))
    return results.filter((result) => result.status === "fulfilled").length
  }

  async restore(snapshotId: string, config: Partial<Config> = {}): Promise<Instance> {
    // The session's own sandbox, if there is one, is not what was asked for.
    const id = config.id ?? `opencode-${randomUUID()}`
    return this.make({ ...config, id }, snapshotId)
  }

  async listSnapshots(filter: { sandboxId?: string; projectId?: string } = {}): Promise<Snapshot[]> {
    return this.told("SnapshotError", async () => {
      const path = filter.sandboxId === undefined ? "/v1/snapshots" : place(filter.sandboxId, "/snapshots")
      const found = (await this.pages(path, new URLSearchParams(), "snapshots")).filter((one) => labelsOf(one)[LABEL] !== undefined)
      return found.filter((one) => filter.projectId === undefined || labelsOf(one)[PROJECT] === filter.projectId).map(snapshotOf)
    })
  }

  /** One that is not there is deleted already. */
  async deleteSnapshot(snapshotId: string): Promise<void> {
    const path = `/v1/snapshots/${encodeURIComponent(snapshotId)}`
    await this.told("SnapshotError", () => this.shared.client.ask("DELETE", path, { repeat: true }), { snapshotId })
  }

  async healthCheck(): Promise<boolean> {
    return this.shared.client.ask("GET", "/v1/workspaces", { query: { limit: "1" } }).then(
      () => true,
      () => false,
    )
  }

  private async told<T>(kind: keyof Errors, act: () => Promise<T>, data: Json = {}): Promise<T> {
    try {
      return await act()
    } catch (error) {
      if (error instanceof BerthError || error instanceof ConfigurationError)
        throw fail(this.shared, kind, { message: error.message, ...data }, error)
      throw error
    }
  }
}

function checkEnvironment(env: Record<string, string>, refuse: (text: string) => Error): void {
  for (const [name, value] of Object.entries(env)) {
    if (!/^[A-Za-z_][A-Za-z0-9_]*$/.test(name)) throw refuse(`env has ${shown(name)}, which is no name of a variable`)
    if (name.startsWith("BERTH_")) throw refuse(`env has ${name}: names that begin with BERTH_ are the service's own`)
    if (typeof value !== "string" || value.includes("\0")) throw refuse(`env has a value of ${name} that is none`)
  }
}

function labelsOf(document: Json): Record<string, string> {
  return isObject(document["labels"]) ? (document["labels"] as Record<string, string>) : {}
}

function snapshotOf(document: Json): Snapshot {
  const labels = labelsOf(document)
  return {
    id: String(document["id"]),
    sandboxId: String(document["workspace"]),
    ...(labels[NAME] === undefined ? {} : { name: labels[NAME] }),
    createdAt: String(document["created_at"]),
    sizeBytes: Number(document["size"]),
    metadata: { live: document["live"] },
  }
}

export class BerthInstance implements Instance {
  private files: Files
  private asked: unknown
  private readonly environment: Record<string, string>

  constructor(
    private readonly shared: Shared,
    readonly info: Info,
  ) {
    const env: unknown = JSON.parse(String(info.metadata?.["env"] ?? "{}"))
    this.environment = isObject(env) ? (env as Record<string, string>) : {}
    if (info.metadata) delete info.metadata["env"]
    this.files = this.filesAt(info.workdir)
  }

  private filesAt(workdir: string): Files {
    return new Files(this.shared.client, this.info.id, workdir, this.shared.options.readMax ?? READ_MAX)
  }

  /** Whether commands can be run as it was asked, and where they see the workspace. */
  async begin(config: Config): Promise<void> {
    await this.checkPolicy("CreateError")
    const outcome = await run(this.shared.client, this.info.id, {
      argv: ["/bin/true"],
      timeout: 60_000,
      outputMax: 4096,
      mountPath: this.info.workdir,
    })
    if (outcome.kind === "not_started")
      throw fail(this.shared, "CreateError", { message: `its commands cannot be started: ${String(outcome.verdict["text"])}`, id: this.info.id })
    if (outcome.path !== this.info.workdir && config.workdir !== undefined) this.info.metadata = { ...this.info.metadata, workdirAskedFor: config.workdir }
    if (outcome.path !== undefined && outcome.path !== this.info.workdir) {
      this.info.workdir = outcome.path
      this.files = this.filesAt(outcome.path)
    }
  }

  private async policy(): Promise<Json> {
    return this.shared.client.document("GET", place(this.info.id, "/policy"), { repeat: true })
  }

  /** Whoever administers the service can change it at any time. */
  private async checkPolicy(kind: keyof Errors = "ProviderError"): Promise<void> {
    if (this.shared.options.checkPolicy === false && this.asked !== undefined) return
    const document = await this.policy()
    let trouble: string | undefined
    for (const name of ["fenced", "refused"]) if (document[name]) trouble ??= `${name}: ${String(document[name])}`
    if (!isObject(document["measured"])) trouble ??= "what holds its commands was not measured"
    if (this.asked !== undefined && !isDeepStrictEqual(this.asked, document["asked"]))
      trouble ??= `it was ${JSON.stringify(this.asked)}, and is ${JSON.stringify(document["asked"])}`
    if (trouble !== undefined)
      throw fail(this.shared, kind, { message: `the policy of sandbox ${shown(this.info.id)} does not hold: ${trouble}`, id: this.info.id })
    this.asked ??= document["asked"]
  }

  /** Without args the command is a line for the shell, with args it is a program, and no shell sees them. */
  async exec(command: string, args?: string[], options: ExecOptions = {}): Promise<ExecResult> {
    const argv = args === undefined ? ["/bin/sh", "-c", command] : [command, ...args]
    const refuse = (text: string) => fail(this.shared, "ExecError", { message: text, command })
    for (const word of argv) {
      if (word.includes("\0")) throw refuse("a command cannot have a NUL in it")
      if (Buffer.byteLength(word) > WORD_MAX) throw refuse(`a word of a command has at most ${WORD_MAX} bytes: write a file, and run that`)
    }
    checkEnvironment(options.env ?? {}, refuse)
    const timeout = options.timeout ?? this.shared.options.execTimeout ?? EXEC_TIMEOUT
    if (!(timeout >= 0)) throw refuse(`the timeout is a number of milliseconds, not ${timeout}`)
    try {
      await this.checkPolicy()
      const cwd = await this.directory(options.cwd, refuse)
      const outcome = await run(this.shared.client, this.info.id, {
        argv: cwd.outside === undefined ? argv : ["/bin/sh", "-c", 'cd -- "$1" && shift && exec "$@"', "berth", cwd.outside, ...argv],
        env: { ...this.environment, ...options.env },
        cwd: cwd.inside,
        stdin: options.stdin === undefined ? undefined : Buffer.from(options.stdin),
        timeout: timeout === 0 || timeout === Infinity ? undefined : timeout,
        outputMax: this.shared.options.outputMax ?? OUTPUT_MAX,
        mountPath: this.info.workdir,
      })
      await this.checkPolicy()
      return this.result(command, outcome, timeout)
    } catch (error) {
      throw await this.told(error, "ExecError", { command })
    }
  }

  /** In the workspace, the service enters it; elsewhere in the sandbox a shell does, which was asked whether it can. */
  private async directory(path: string | undefined, refuse: (text: string) => Error): Promise<{ inside?: string; outside?: string }> {
    if (path === undefined || path === "") return {}
    if (path.includes("\0")) throw refuse("the directory has a NUL in it")
    const inside = this.files.inside(path)
    if (inside !== undefined) return { inside }
    const outcome = await run(this.shared.client, this.info.id, {
      argv: ["/bin/sh", "-c", 'cd -- "$1"', "berth", path],
      timeout: 60_000,
      outputMax: 4096,
      mountPath: this.info.workdir,
    })
    if (outcome.exitStatus !== 0) throw refuse(`${shown(path)} cannot be entered: ${outcome.stderr.toString("utf8").trim()}`)
    return { outside: path }
  }

  private result(command: string, outcome: Outcome, timeout: number): ExecResult {
    const { verdict, kind } = outcome
    const result: ExecResult = {
      exitCode: outcome.exitStatus,
      stdout: outcome.stdout.toString("utf8"),
      stderr: outcome.stderr.toString("utf8"),
      durationMs: Math.round(outcome.duration),
      stdoutTruncated: outcome.truncated.stdout,
      stderrTruncated: outcome.truncated.stderr,
    }
    const told = String(verdict["text"] ?? verdict["errno"] ?? kind)
    if (kind === "timed_out") {
      const applied = typeof verdict["timeout_ms"] === "number" ? verdict["timeout_ms"] : timeout
      const left = Number(verdict["left"] ?? 0)
      const text = left > 0 ? `; ${left} of its processes could not be ended` : ""
      throw fail(this.shared, "TimeoutError", { message: `not within ${applied} ms${text}`, timeoutMs: applied, command, ...result })
    }
    if (kind === "killed") throw fail(this.shared, "ExecError", { message: `it was ended: ${told}`, command, ...result })
    if (kind === "not_started" && verdict["stage"] !== "execve")
      throw fail(this.shared, "ExecError", { message: `it was not started, at the step ${String(verdict["stage"])}: ${told}`, command })
    // Of a program that is not there, as a shell would have it; of a limit on memory, why.
    if (kind === "not_started" || kind === "oom_killed") result.stderr += `${result.stderr && !result.stderr.endsWith("\n") ? "\n" : ""}${command}: ${told}\n`
    return result
  }

  async readFile(path: string): Promise<string> {
    return (await this.file(path, "read", () => this.files.read(path))).toString("utf8")
  }

  async readFileBuffer(path: string): Promise<Uint8Array> {
    return new Uint8Array(await this.file(path, "read", () => this.files.read(path)))
  }

  async writeFile(path: string, content: string | Uint8Array): Promise<void> {
    const data = typeof content === "string" ? Buffer.from(content) : content
    await this.file(path, "write", () => this.files.write(path, data))
  }

  async deleteFile(path: string, options: { recursive?: boolean } = {}): Promise<void> {
    await this.file(path, "delete", () => this.files.remove(path, options.recursive ?? false))
  }

  async listFiles(path: string): Promise<FileInfo[]> {
    return this.file(path, "list", () => this.files.list(path))
  }

  async exists(path: string): Promise<boolean> {
    return this.file(path, "read", () => this.files.exists(path))
  }

  private async file<T>(path: string, operation: string, act: () => Promise<T>): Promise<T> {
    try {
      return await act()
    } catch (error) {
      const size = error instanceof FileTooLarge ? { sizeBytes: error.size, maxBytes: error.limit } : {}
      throw await this.told(error, "FileError", { path, operation, ...size })
    }
  }

  /** As the contract has it. A sandbox that is gone, or a service that is not reached, is no matter of this one command
   * or file. */
  private async told(error: unknown, kind: keyof Errors, data: Json): Promise<unknown> {
    if (error instanceof FileTrouble) return fail(this.shared, kind, { message: error.message, ...data }, error)
    if (!(error instanceof BerthError)) return error
    if (error instanceof LostError) {
      const text = `${error.message}. It may have happened or not: look before it is done again.`
      return fail(this.shared, kind, { message: text, outcome: "unknown", ...data }, error)
    }
    if (error.status === 404 && (await this.getStatus().catch(() => undefined)) === "terminated")
      return fail(this.shared, "NotFoundError", { id: this.info.id, message: `the sandbox ${shown(this.info.id)} is gone` }, error)
    if (error.status === 0 || error.status === 401 || error.status === 403)
      return fail(this.shared, "ProviderError", { message: error.message }, error)
    return fail(this.shared, kind, { message: error.message, ...data }, error)
  }

  /** Commands stand still while it is taken; where the service cannot do that, they go on, and metadata says so. */
  async snapshot(name?: string): Promise<Snapshot> {
    const { id, projectId } = this.info
    const labels: Record<string, string> = { [LABEL]: "1" }
    if (name !== undefined) labels[NAME] = name
    if (projectId !== undefined) labels[PROJECT] = projectId
    const json: Json = { id: `opencode-${randomUUID()}`, labels }
    const take = (live: boolean) => this.shared.client.document("POST", place(id, "/snapshots"), { json: { ...json, live } })
    try {
      return snapshotOf(await take(false).catch((error: unknown) => {
        if (error instanceof BerthError && (error.status === 501 || error.errno === "EOPNOTSUPP")) return take(true)
        throw error
      }))
    } catch (error) {
      throw await this.told(error, "SnapshotError", { sandboxId: id })
    }
  }

  async stop(): Promise<void> {
    await this.lifecycle("POST", "/stop")
  }

  async terminate(): Promise<void> {
    await this.lifecycle("DELETE", "", { force: "1" })
  }

  private async lifecycle(method: string, rest: string, query: Record<string, string> = {}): Promise<void> {
    try {
      await this.shared.client.ask(method, place(this.info.id, rest), { query, repeat: true })
    } catch (error) {
      throw await this.told(error, "ProviderError", {})
    }
  }

  async getStatus(): Promise<Status> {
    try {
      const workspace = await this.shared.client.document("GET", place(this.info.id), { repeat: true })
      this.info.status = workspace["state"] === "stopped" ? "stopped" : "running"
    } catch (error) {
      if (!(error instanceof BerthError) || error.status !== 404)
        throw fail(this.shared, "ProviderError", { message: message(error) }, error)
      this.info.status = "terminated"
    }
    return this.info.status
  }

  async waitForStatus(status: Status, timeoutMs = 30_000): Promise<void> {
    const deadline = now() + timeoutMs
    for (let pause = 20; (await this.getStatus()) !== status; pause = Math.min(2 * pause, 500)) {
      if (now() >= deadline) throw fail(this.shared, "TimeoutError", { message: `the sandbox is ${this.info.status}, not ${status}`, timeoutMs })
      await sleep(Math.min(pause, Math.max(1, deadline - now())))
    }
  }
}
