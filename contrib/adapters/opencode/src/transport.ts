/** Connections to a Berth service, for HTTP/1.1: unix sockets, TLS, plain loopback, and the standard input and
 * output of a command such as `ssh HOST berthd --stdio`. */

import { spawn, type ChildProcess } from "node:child_process"
import { readFileSync } from "node:fs"
import * as http from "node:http"
import * as https from "node:https"
import { Duplex } from "node:stream"

/** A service, and what is shown to it. */
export interface Address {
  /** unix:PATH, https://HOST:PORT, http://LOOPBACK:PORT or exec:COMMAND, as `berth --url` has it. */
  url: string
  token?: string | undefined
  tokenFile?: string | undefined
  caFile?: string | undefined
  certFile?: string | undefined
  keyFile?: string | undefined
}

const IDLE_MAX = 4
const IDLE_MS = 20_000
/** Of what a command that is a stream says on standard error, as much is told. */
const CHILD_ERROR_MAX = 2048
const CHILD_END_MS = 2000

export class ConfigurationError extends Error {}

/** Whatever `berth` would take from its environment, else its default unix socket. */
export function addressFromEnvironment(env: NodeJS.ProcessEnv = process.env): Address {
  const uid = process.getuid?.() ?? 0
  const runtime = env["XDG_RUNTIME_DIR"] || (uid === 0 ? "/run" : undefined)
  return {
    url: env["BERTH_URL"] || (runtime ? `unix:${runtime}/berth/berthd.sock` : `unix:/tmp/berth-${uid}/berthd.sock`),
    token: env["BERTH_TOKEN"],
    tokenFile: env["BERTH_TOKEN_FILE"],
    caFile: env["BERTH_CA_FILE"],
    certFile: env["BERTH_CERT_FILE"],
    keyFile: env["BERTH_KEY_FILE"],
  }
}

export interface Transport {
  readonly url: string
  request(options: http.RequestOptions): http.ClientRequest
  /** Why connections end, as far as that is known; may be empty. */
  explanation(): string
  close(): void
}

export function transportOf(address: Address): Transport {
  const { url } = address
  if (url.includes("\0")) throw new ConfigurationError("an address cannot have a NUL in it")
  if (url.startsWith("unix:") && url.length > 5) return new SocketTransport(address, url.slice(5))
  if (url.startsWith("exec:") && url.length > 5) return new CommandTransport(address, url.slice(5))
  if (url.startsWith("https://") || url.startsWith("http://")) return new NetworkTransport(address)
  throw new ConfigurationError(
    `${JSON.stringify(url)} is no address of a service: unix:PATH, https://HOST:PORT, http://LOOPBACK:PORT or exec:COMMAND`,
  )
}

/** Read anew each time, so that a token that is replaced in its file is used. */
function bearer(address: Address): Record<string, string> {
  let token = address.token
  if (token === undefined && address.tokenFile !== undefined) {
    token = readFileSync(address.tokenFile, "utf8")
      .split("\n")
      .map((line) => line.trim())
      .find((line) => line !== "" && !line.startsWith("#"))
    if (token === undefined) throw new ConfigurationError(`${address.tokenFile} has no token`)
  }
  return token === undefined ? {} : { authorization: `Bearer ${token}` }
}

abstract class Base implements Transport {
  readonly url: string
  protected abstract readonly agent: http.Agent

  constructor(protected readonly address: Address) {
    this.url = address.url
  }

  request(options: http.RequestOptions): http.ClientRequest {
    const headers = { ...options.headers, ...bearer(this.address) }
    return this.begin({ ...options, agent: this.agent, headers })
  }

  protected begin(options: http.RequestOptions): http.ClientRequest {
    return http.request({ ...options, headers: { host: "berth", ...options.headers } })
  }

  explanation(): string {
    return ""
  }

  close(): void {
    this.agent.destroy()
  }
}

const KEPT = { keepAlive: true, maxFreeSockets: IDLE_MAX, timeout: IDLE_MS }

class SocketTransport extends Base {
  protected readonly agent = new http.Agent(KEPT)

  constructor(
    address: Address,
    private readonly path: string,
  ) {
    super(address)
  }

  protected override begin(options: http.RequestOptions): http.ClientRequest {
    return super.begin({ ...options, socketPath: this.path })
  }
}

class NetworkTransport extends Base {
  protected readonly agent: http.Agent
  private readonly target: { hostname: string; port: number }
  private readonly secure: boolean

  constructor(address: Address) {
    super(address)
    let url: URL
    try {
      url = new URL(address.url)
    } catch {
      throw new ConfigurationError(`${JSON.stringify(address.url)} is no URL`)
    }
    this.secure = url.protocol === "https:"
    const hostname = url.hostname.replace(/^\[(.*)\]$/, "$1")
    if (url.username || url.password || url.search || !["", "/"].includes(url.pathname))
      throw new ConfigurationError(`${JSON.stringify(address.url)} is not ${url.protocol}//HOST:PORT`)
    if (!this.secure && !(hostname === "localhost" || hostname === "::1" || hostname.startsWith("127.")))
      throw new ConfigurationError(`${address.url}: without encryption only this machine is reached; use https`)
    this.target = { hostname, port: Number(url.port) || (this.secure ? 443 : 80) }
    const read = (path: string | undefined) => (path === undefined ? undefined : readFileSync(path))
    this.agent = this.secure
      ? new https.Agent({
          ...KEPT,
          minVersion: "TLSv1.3",
          ca: read(address.caFile),
          cert: read(address.certFile),
          key: read(address.keyFile),
        })
      : new http.Agent(KEPT)
  }

  protected override begin(options: http.RequestOptions): http.ClientRequest {
    return (this.secure ? https : http).request({ ...options, ...this.target })
  }
}

/** Each connection is a process of the command, which ends with it. */
class CommandTransport extends Base {
  protected readonly agent: http.Agent
  private said = ""

  constructor(address: Address, command: string) {
    super(address)
    const agent = new http.Agent(KEPT)
    const connect = () => new CommandStream(command, (text) => (this.said = (this.said + text).slice(-CHILD_ERROR_MAX)))
    // What a connection is made by; types know it of sockets alone.
    Object.assign(agent, { createConnection: connect })
    this.agent = agent
  }

  override explanation(): string {
    return this.said.trim().split("\n").at(-1) ?? ""
  }
}

/** The two ends of a child as one stream, with what an agent asks of a socket. */
class CommandStream extends Duplex {
  private readonly child: ChildProcess
  private ended = false

  constructor(command: string, told: (text: string) => void) {
    super()
    this.child = spawn("/bin/sh", ["-c", command], { stdio: ["pipe", "pipe", "pipe"], detached: true })
    const { stdin, stdout, stderr } = this.child
    stdin?.on("error", (error) => this.destroy(error))
    stdout?.on("data", (chunk: Buffer) => {
      if (!this.push(chunk)) stdout.pause()
    })
    stdout?.on("end", () => this.push(null))
    stderr?.on("data", (chunk: Buffer) => told(chunk.toString("utf8")))
    this.child.on("error", (error) => this.destroy(error))
    this.child.on("exit", () => {
      if (this.destroyed) this.kill("SIGKILL")
      this.ended = true
    })
  }

  override _read(): void {
    this.child.stdout?.resume()
  }

  override _write(chunk: Buffer, _encoding: BufferEncoding, callback: (error?: Error | null) => void): void {
    this.child.stdin?.write(chunk, callback)
  }

  override _final(callback: (error?: Error | null) => void): void {
    this.child.stdin?.end(() => callback())
  }

  override _destroy(error: Error | null, callback: (error?: Error | null) => void): void {
    this.child.stdin?.destroy()
    this.child.stdout?.destroy()
    const kill = setTimeout(() => {
      this.kill("SIGKILL")
    }, CHILD_END_MS)
    kill.unref()
    this.kill("SIGTERM")
    callback(error)
  }

  /** The shell, and all that it has started in its process group, whose ID may be another's when the shell has long
   * ended. */
  private kill(signal: NodeJS.Signals): void {
    if (this.ended || this.child.pid === undefined) return
    try {
      process.kill(-this.child.pid, signal)
    } catch {
      // There is none any more.
    }
  }

  setKeepAlive(): this {
    return this
  }

  setNoDelay(): this {
    return this
  }

  setTimeout(): this {
    return this
  }

  /** Whoever waits for an answer keeps the program alive, and not a connection that is kept. */
  ref(): this {
    this.each((handle) => handle.ref?.())
    return this
  }

  unref(): this {
    this.each((handle) => handle.unref?.())
    return this
  }

  private each(act: (handle: { ref?(): void; unref?(): void }) => void): void {
    act(this.child)
    for (const stream of [this.child.stdin, this.child.stdout, this.child.stderr])
      if (stream) act(stream as unknown as { ref?(): void; unref?(): void })
  }
}
